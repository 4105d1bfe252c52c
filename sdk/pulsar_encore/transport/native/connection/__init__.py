"""Connections to brokers, and what keeps a consumer or producer attached to one."""
