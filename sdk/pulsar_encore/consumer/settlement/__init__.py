"""Acks, redelivery, and the check that a message belongs to this consumer."""
