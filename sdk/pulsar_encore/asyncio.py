"""The names of `pulsar.asyncio`, as classes of this package."""

from __future__ import annotations

from .client import Client
from .consumer.consumer import Consumer
from .errors import PulsarException
from .options import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)
from .producer import Producer
from .reader.reader import Reader

__all__ = [
    "BatchingType",
    "Client",
    "CompressionType",
    "Consumer",
    "ConsumerCryptoFailureAction",
    "InitialPosition",
    "PartitionsRoutingMode",
    "Producer",
    "ProducerAccessMode",
    "PulsarException",
    "Reader",
    "RegexSubscriptionMode",
]
