"""The tasks of the tiny world: what is asked, and what verifies an answer."""
