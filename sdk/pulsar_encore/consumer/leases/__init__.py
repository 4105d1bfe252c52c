"""Leases: messages that are handed out for a time (pop consumption)."""
