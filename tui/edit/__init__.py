"""A recipe that is being changed: its knobs, their steps, its doubts."""
