"""Transactions on a real Pulsar with a transaction coordinator."""
