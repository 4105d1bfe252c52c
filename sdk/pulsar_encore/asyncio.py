"""The names of `pulsar.asyncio`, for programs that import that module; all are this package's."""

from __future__ import annotations

from . import (
    BatchingType,
    Client,
    CompressionType,
    Consumer,
    ConsumerCryptoFailureAction,
    InitialPosition,
    PartitionsRoutingMode,
    Producer,
    ProducerAccessMode,
    PulsarException,
    Reader,
    RegexSubscriptionMode,
)

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
