"""The transport over the stock `pulsar-client`: the only package that imports it."""

from .transport import StockTransport

__all__ = ["StockTransport"]
