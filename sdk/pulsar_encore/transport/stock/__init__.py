"""The transport over the stock `pulsar-client`. No other package imports that library."""

from .stock_transport import StockTransport

__all__ = ["StockTransport"]
