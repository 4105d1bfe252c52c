"""The consumer: stock's methods, and the right behaviour behind them."""

from .consumer import Consumer
from .nack_spilling import NackIndexStatistics
from .statistics import Statistics

__all__ = ["Consumer", "NackIndexStatistics", "Statistics"]
