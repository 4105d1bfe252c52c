"""Seeded cases with faulty connections, none of which may lose a message."""
