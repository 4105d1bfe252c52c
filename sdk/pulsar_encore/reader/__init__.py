"""Readers: read a topic from any position, without a durable subscription."""

from .reader import Reader

__all__ = ["Reader"]
