"""Encryption of a producer's messages. A producer that cannot encrypt never sends clear text."""

from __future__ import annotations

import asyncio

from ....eventloop.alarm import now_ms
from ....options import ProducerOptions
from ....values.crypto_keys import key_reader_of
from ....wire import pulsar_pb2 as pb
from ....wire.checksum import Data
from ....wire.entry_encryption import Encryptor, PublicKey
from .send_encoder import Encrypt


async def encryptor_of(options: ProducerOptions) -> Encrypt | None:
    """Return the function that encrypts for the keys of the options; None if they have none."""
    names = options.encryption_key
    if names is None:
        return None
    reader = key_reader_of(options.crypto_key_reader)
    assert reader is not None  # checked with the options
    loop = asyncio.get_running_loop()
    recipients = {
        # In a thread, because the reader may block.
        name: PublicKey(await asyncio.to_thread(reader.public_key, name, {}))
        for name in (names if isinstance(names, tuple) else (names,))
    }
    encryptor = Encryptor(recipients, now_ms=now_ms(loop))

    def encrypt(payload: Data, metadata: pb.MessageMetadata) -> bytes:
        return encryptor.encrypt(metadata, payload, now_ms=now_ms(loop))

    return encrypt
