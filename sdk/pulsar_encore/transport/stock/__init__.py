"""The transport over the stock `pulsar-client`: the only package that imports it."""

from ...stock import link
from .stock_transport import StockTransport

link()  # where the loader of stock's package could not be told to

__all__ = ["StockTransport"]
