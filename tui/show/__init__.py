"""Pictures and panels as rows of text with roles: pure functions, no screen."""
