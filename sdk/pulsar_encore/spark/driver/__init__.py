"""The driver's side of a read."""
