"""Helpers for asyncio: loop affinity, fairness, timers, and calls from other threads."""
