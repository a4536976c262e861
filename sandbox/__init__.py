"""The tiny reasoning world: task, tiny transformer, virtual generators and trainers."""
