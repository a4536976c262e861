"""Screens of the app, one file each."""
