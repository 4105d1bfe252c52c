"""Reading a topic from any position, without a subscription that lasts."""

from .reader import Reader

__all__ = ["Reader"]
