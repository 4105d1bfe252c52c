"""Forwarding of failed messages to letter topics."""
