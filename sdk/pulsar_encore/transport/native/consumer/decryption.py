"""Decrypts entries with the keys of `crypto_key_reader`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ....errors import CryptoError, EncoreError
from ....options import ConsumerCryptoFailureAction, Subscription
from ....values.crypto_keys import CryptoKeyReader, key_reader_of
from ....wire import pulsar_pb2 as pb
from ....wire.entry_encryption import DataKeys, DecryptionError, is_encrypted


class Decryption:
    """Decrypts the entries of one subscription.

    Raises:
        NotSupportedError: if there is a key reader and `cryptography` is not installed, or if only
            the C++ client can use the key reader.
        ConfigurationError: if the key reader has another type.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._reader = key_reader_of(subscription.crypto_key_reader)
        self.failure_action: ConsumerCryptoFailureAction = subscription.crypto_failure_action
        self._keys = DataKeys() if self._reader is not None else None

    def decrypt(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        """Return the payload in clear, or raise EncoreError."""
        if not is_encrypted(metadata):
            return payload
        if self._reader is None or self._keys is None:
            names = ", ".join(repr(each.key) for each in metadata.encryption_keys)
            raise DecryptionError(
                f"the message is encrypted for {names}: subscribe with a crypto_key_reader"
            )
        return self._keys.decrypt(metadata, payload, partial(_private_key, self._reader))


def _private_key(reader: CryptoKeyReader, name: str, metadata: Mapping[str, str]) -> bytes | None:
    """Return the key that the application's reader gives.

    Raises:
        CryptoError: if the reader fails, or returns neither bytes nor None.
    """
    try:
        key: object = reader.private_key(name, dict(metadata))
    except EncoreError:
        raise
    except Exception as error:
        raise CryptoError(
            f"the key {name!r}: crypto_key_reader.private_key raised {type(error).__name__}"
        ) from error
    if key is None or isinstance(key, bytes):
        return key
    raise CryptoError(
        f"the key {name!r}: crypto_key_reader.private_key must give bytes, gave "
        f"{type(key).__name__}"
    )
