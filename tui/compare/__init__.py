"""Curves side by side: what stands in the table, the plot and the export of a comparison."""
