"""Widgets: each in its own file, with its CSS inside."""
