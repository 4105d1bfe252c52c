"""The tasks' side of a read."""
