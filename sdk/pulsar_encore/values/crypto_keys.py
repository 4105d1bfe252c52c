"""End-to-end encryption as an application uses it, with the names of `pulsar-client`.

Transports encrypt and decrypt. Keys never appear in a repr or an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from .. import stock
from ..errors import ConfigurationError, CryptoError, NotSupportedError
from ..options import CompressionType
from ..options.enums import coerce


class CryptoKeyReader:
    """Reads a public and a private key from two files each time they are needed.

    The files are used for every key name. A subclass can find keys by name: override `public_key`
    and `private_key`. The stock transport ignores such a subclass and reads the two files itself.

    Args:
        public_key_path: PEM file; producers encrypt with it.
        private_key_path: PEM file; consumers decrypt with it.

    Raises:
        ConfigurationError: if a path is not a str.

    Example:
        ```python
        keys = pulsar_encore.CryptoKeyReader("public.pem", "private.pem")
        producer = await client.create_producer(
            "orders", encryption_key="orders-key", crypto_key_reader=keys
        )
        ```
    """

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        for name, path in (
            ("public_key_path", public_key_path),
            ("private_key_path", private_key_path),
        ):
            if not isinstance(path, str):
                raise ConfigurationError(f"{name} must be a str, got {type(path).__name__}")
        self.public_key_path: str = public_key_path
        self.private_key_path: str = private_key_path

    def public_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        """Return the public key of a name, in PEM.

        Args:
            name: One of `create_producer(encryption_key=)`.
            metadata: Known properties of the key.

        Raises:
            CryptoError: if the key cannot be read.
        """
        return _read_key_file(self.public_key_path, "public_key_path", name)

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        """Return the private key of a name, in PEM.

        Args:
            name: The key name that the producer used.
            metadata: Properties of the key that the producer sent.

        Raises:
            CryptoError: if the key cannot be read.
        """
        return _read_key_file(self.private_key_path, "private_key_path", name)

    @cached_property
    def cryptoKeyReader(self) -> Any:
        """The reader as an object of the C++ client."""
        return stock.library().CryptoKeyReader(self.public_key_path, self.private_key_path)

    def __repr__(self) -> str:
        return f"CryptoKeyReader({self.public_key_path!r}, {self.private_key_path!r})"


def key_reader_of(value: Any) -> CryptoKeyReader | None:
    """Return a `crypto_key_reader` whose keys Python can read, or None.

    A reader of `pulsar-client` raises NotSupportedError: only the C++ client can read its paths.
    """
    if value is None or isinstance(value, CryptoKeyReader):
        return value
    if hasattr(value, "cryptoKeyReader"):
        raise NotSupportedError(
            "crypto_key_reader belongs to pulsar-client, and only the C++ client can read it: "
            "create a pulsar_encore.CryptoKeyReader, or use the stock transport"
        )
    raise ConfigurationError(
        f"crypto_key_reader must be a CryptoKeyReader, got {type(value).__name__}"
    )


class KeyFields(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    def value(self) -> bytes: ...


class ContextFields(Protocol):
    """The data of a transport about the encryption of a message, as in the C++ client."""

    def keys(self) -> Sequence[KeyFields]: ...
    def param(self) -> bytes: ...
    def algorithm(self) -> str: ...
    def compression_type(self) -> Any: ...
    def uncompressed_message_size(self) -> int: ...
    def batch_size(self) -> int: ...
    def is_decryption_failed(self) -> bool: ...


class EncryptionKey:
    """One of the keys that a message was encrypted with."""

    def __init__(self, key: KeyFields) -> None:
        self._key = key

    @property
    def key(self) -> str:
        """The name of the key."""
        return self._key.key

    @property
    def value(self) -> bytes:
        """The data key, encrypted with this key."""
        return self._key.value()

    @property
    def metadata(self) -> dict[str, str]:
        """Properties of the key that the producer sent."""
        return self._key.metadata

    def __repr__(self) -> str:
        return (
            f"EncryptionKey(key={self.key}, value_len={len(self.value)}, metadata={self.metadata})"
        )


class EncryptionContext:
    """How a message was encrypted, with the data that is needed to decrypt it elsewhere."""

    def __init__(self, context: ContextFields) -> None:
        self._context = context

    def keys(self) -> list[EncryptionKey]:
        """Return the keys that the data key was encrypted with."""
        return [EncryptionKey(each) for each in self._context.keys()]

    def param(self) -> bytes:
        """Return the initialisation vector."""
        return self._context.param()

    def algorithm(self) -> str:
        return self._context.algorithm()

    def compression_type(self) -> CompressionType:
        """Return the compression of the payload before encryption."""
        return coerce(CompressionType, self._context.compression_type(), "compression_type")

    def uncompressed_message_size(self) -> int:
        """Return the size in bytes; 0 without compression."""
        return self._context.uncompressed_message_size()

    def batch_size(self) -> int:
        """Return the number of messages in the batch; -1 if the message is not in a batch."""
        return self._context.batch_size()

    def is_decryption_failed(self) -> bool:
        """Return True if `data()` is encrypted (`ConsumerCryptoFailureAction.CONSUME`)."""
        return self._context.is_decryption_failed()

    def __repr__(self) -> str:
        return (
            f"EncryptionContext(algorithm={self.algorithm()}, "
            f"compression_type={self.compression_type().name}, "
            f"uncompressed_message_size={self.uncompressed_message_size()}, "
            f"is_decryption_failed={self.is_decryption_failed()}, "
            f"keys=[{', '.join(str(key) for key in self.keys())}])"
        )


def _read_key_file(path: str, option: str, name: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CryptoError(
            f"the key {name!r}: crypto_key_reader's {option}: cannot read {path!r}: "
            f"{error.strerror}"
        ) from error
