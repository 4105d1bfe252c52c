"""The transport over the stock `pulsar-client`: the only package that imports it."""

from .stock_transport import StockTransport

__all__ = ["StockTransport"]
