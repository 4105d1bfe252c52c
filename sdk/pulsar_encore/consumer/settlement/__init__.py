"""Whose message is it, acks and redelivery. Knows no letters."""
