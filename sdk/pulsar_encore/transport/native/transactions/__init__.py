"""Transactions (PIP-31) of the native transport."""
