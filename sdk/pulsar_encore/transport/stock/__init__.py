"""The transport over the stock `pulsar-client`: the only package that imports it."""

from .engine import StockTransport
from .failures import StockError

__all__ = ["StockError", "StockTransport"]
