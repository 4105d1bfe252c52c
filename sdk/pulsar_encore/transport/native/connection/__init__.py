"""Connections to brokers, and the attachment of consumers and producers to them."""
