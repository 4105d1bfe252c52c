"""What a micro-batch takes, and how it is cut into tasks. Pure."""
