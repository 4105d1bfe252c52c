"""Lookups: the existing topics, their partitions, and the broker that serves a topic."""
