"""Questions one can run, the sites to run them on, and the one place that opens a world."""
