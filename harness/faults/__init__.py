"""Connections that break, wait and lie: seeded cases, each of which must lose nothing."""
