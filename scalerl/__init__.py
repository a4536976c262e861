"""The core: pure algorithm, which knows nothing of where it runs."""
