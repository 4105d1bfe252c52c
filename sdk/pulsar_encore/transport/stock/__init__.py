"""The transport over the stock `pulsar-client`: the only package that imports it."""

from .engine import StockTransport

__all__ = ["StockTransport"]
