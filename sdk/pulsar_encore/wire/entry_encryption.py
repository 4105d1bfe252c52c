"""End-to-end encryption of entries: `Encryptor` for a producer, `DataKeys` for a consumer.

A payload is compressed first and then encrypted as a whole, a batch as one payload, and each chunk
separately: AES-256-GCM, 12-byte nonce, 16-byte tag, no associated data. Every entry carries the
data key, wrapped with the public key of each recipient (`ciphers`). Without the package
`cryptography` (extra `encryption`) the constructors raise an error; nothing is sent in clear
instead.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from ..errors import ConfigurationError, NotSupportedError
from . import pulsar_pb2 as pb
from .commands import key_values
from .entries import EntryError, properties, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from .checksum import Data

TAG_SIZE: Final = 16
"""Bytes that encryption adds to a payload."""

DATA_KEY_MS: Final = 4 * 3600 * 1000
"""How long one data key is used, as in Java's client and `pulsar-client`."""

DATA_KEY_ENTRIES: Final = 1 << 32
"""How many entries one data key may encrypt with random nonces (NIST SP 800-38D, 8.3)."""

_KEY_SIZE: Final = 32
_NONCE_SIZE: Final = 12


class DecryptionError(EntryError):
    """The payload cannot be decrypted: the key is missing or wrong, or bytes were altered.

    Ack it only if the application chose to discard such messages. Another consumer may be able to
    read it.
    """

    validation_error: ClassVar[pb.CommandAck.ValidationError.ValueType] = (
        pb.CommandAck.DecryptionError
    )


class PublicKey(NamedTuple):
    """A recipient's public key.

    Attributes:
        pem: RSA or EC. Explicit curve parameters must be those of P-256, P-384 or P-521.
        metadata: Sent with the wrapped data key, to help consumers find the private key.
    """

    pem: bytes
    metadata: Mapping[str, str] = {}


class Encryptor:
    """Encrypts the entries of one producer, for recipients by the names that consumers know."""

    def __init__(self, recipients: Mapping[str, PublicKey], *, now_ms: int) -> None:
        if not recipients:
            raise ConfigurationError("encryption without recipients: name at least one key")
        self._ciphers = _ciphers()
        self._recipients = dict(recipients)
        self.renew(now_ms)

    def renew(self, now_ms: int) -> None:
        data_key = os.urandom(_KEY_SIZE)
        self._wrapped = [
            pb.EncryptionKeys(
                key=name,
                value=self._wrap(name, key.pem, data_key),
                metadata=key_values(key.metadata),
            )
            for name, key in self._recipients.items()
        ]
        self._cipher = self._ciphers.AESGCM(data_key)
        self._key_expires_ms = now_ms + DATA_KEY_MS
        self._entries_left = DATA_KEY_ENTRIES

    def _wrap(self, name: str, pem: bytes, data_key: bytes) -> bytes:
        try:
            wrapped: bytes = self._ciphers.wrap(self._ciphers.load(pem), data_key)
        except self._ciphers.KeyMaterialError as error:
            raise ConfigurationError(f"encryption key {name!r}: {error}") from error
        return wrapped

    def encrypt(self, metadata: pb.MessageMetadata, payload: Data, *, now_ms: int) -> bytes:
        """Encrypt the compressed payload of one entry, and set the fields of its metadata."""
        if now_ms >= self._key_expires_ms or not self._entries_left:
            self.renew(now_ms)
        self._entries_left -= 1
        nonce = os.urandom(_NONCE_SIZE)
        metadata.ClearField("encryption_keys")
        metadata.ClearField("encryption_algo")
        metadata.encryption_keys.extend(self._wrapped)
        metadata.encryption_param = nonce
        encrypted: bytes = self._cipher.encrypt(nonce, payload, None)
        return encrypted


class DataKeys:
    """Decrypts entries, and caches the `most` unwrapped data keys that were used last.

    To unwrap a data key again takes about a millisecond.
    """

    def __init__(self, most: int = 1000) -> None:
        if most < 1:
            raise ConfigurationError(f"at least 1 data key must be remembered, not {most}")
        self._max_keys = most
        self._ciphers = _ciphers()
        self._data_keys: OrderedDict[bytes, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._data_keys)

    def decrypt(
        self,
        metadata: pb.MessageMetadata,
        payload: Data,
        private_key: Callable[[str, Mapping[str, str]], bytes | None],
    ) -> bytes:
        """Decrypt the payload of one entry. The result may be compressed.

        `private_key` returns the PEM of a recipient's private key for its name and the metadata
        from the producer; None if this consumer has no key of that name.
        """
        nonce = metadata.encryption_param
        if len(nonce) != _NONCE_SIZE:
            raise DecryptionError(f"nonce of {len(nonce)} bytes, {_NONCE_SIZE} expected")
        cipher = self._cipher(metadata, private_key)
        try:
            clear: bytes = cipher.decrypt(nonce, payload, None)
        except (self._ciphers.InvalidTag, ValueError) as error:
            raise DecryptionError("the payload was altered after its encryption") from error
        return clear

    def _cipher(
        self,
        metadata: pb.MessageMetadata,
        private_key: Callable[[str, Mapping[str, str]], bytes | None],
    ) -> Any:
        known = self._data_keys
        for wrapped in metadata.encryption_keys:
            found = known.get(wrapped.value)
            if found is not None:
                known.move_to_end(wrapped.value)
                return found
        causes: list[str] = []
        for wrapped in metadata.encryption_keys:
            name = text(wrapped.key)
            pem = private_key(name, properties(wrapped.metadata))
            if pem is None:
                causes.append(f"no private key of the name {name!r}")
                continue
            try:
                cipher = self._ciphers.AESGCM(self._ciphers.unwrap(pem, wrapped.value))
            except (self._ciphers.KeyMaterialError, ValueError) as error:
                causes.append(f"private key {name!r}: {error}")
                continue
            known[wrapped.value] = cipher
            if len(known) > self._max_keys:
                known.popitem(last=False)
            return cipher
        raise DecryptionError("; ".join(causes) or "the entry names no keys")


def check_key(pem: bytes, *, private: bool) -> None:
    """Check that a private or public key can be used. The error does not show the key."""
    ciphers = _ciphers()
    try:
        (ciphers.load_private if private else ciphers.load)(pem)
    except ciphers.KeyMaterialError as error:
        raise ConfigurationError(str(error)) from error


def is_encrypted(metadata: pb.MessageMetadata) -> bool:
    return len(metadata.encryption_keys) > 0


def _ciphers() -> ModuleType:
    """Import `ciphers` late: few topics are encrypted, and `cryptography` is large."""
    try:
        from . import ciphers
    except ImportError as error:
        raise NotSupportedError(
            "encryption needs the package cryptography: pip install pulsar-encore[encryption]"
        ) from error
    return ciphers
