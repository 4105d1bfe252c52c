"""Encryption of what a producer sends: for whom, and with which data key.

Owns `encryptor_of`. A producer that was asked to encrypt and cannot is an error, never clear text.
"""

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
    """What encrypts for the keys of the options; None when they have none.

    Raises:
        CryptoError: A public key cannot be read.
        ConfigurationError: It is none, or none that can wrap a data key.
        NotSupportedError: The package `cryptography` is not installed, or the keys are known to
            the C++ library alone.
    """
    names = options.encryption_key
    if names is None:
        return None
    reader = key_reader_of(options.crypto_key_reader)
    assert reader is not None  # the options need one for their keys
    loop = asyncio.get_running_loop()
    recipients = {
        # From files, or from wherever a subclass has them.
        name: PublicKey(await asyncio.to_thread(reader.public_key, name, {}))
        for name in (names if isinstance(names, tuple) else (names,))
    }
    encryptor = Encryptor(recipients, now_ms=now_ms(loop))

    def encrypt(payload: Data, metadata: pb.MessageMetadata) -> bytes:
        return encryptor.encrypt(metadata, payload, now_ms=now_ms(loop))

    return encrypt
