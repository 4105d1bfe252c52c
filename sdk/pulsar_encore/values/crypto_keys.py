"""End-to-end encryption as an application sees it, under stock's names.

Owns `CryptoKeyReader`, which names the keys, and `EncryptionContext`, which tells how a received
message was encrypted. Who encrypts is the transport. No key is in a repr or an error.
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
    """Reads keys from two files, the same for every name, when they are needed.

    A subclass may find keys elsewhere, by name: it overrides `public_key` and `private_key`. (The
    stock transport reads the two files itself and asks neither.)

    Args:
        public_key_path: PEM; producers encrypt with it.
        private_key_path: PEM; consumers decrypt with it.

    Raises:
        ConfigurationError: A path is no str.
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
        """The public key of a name, PEM.

        Args:
            name: One of `create_producer(encryption_key=)`.
            metadata: What is known of the key.

        Raises:
            CryptoError: It cannot be read.
        """
        return _read_key_file(self.public_key_path, "public_key_path", name)

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        """The private key of a name, PEM.

        Args:
            name: As the producer named it.
            metadata: What the producer sent with it.

        Raises:
            CryptoError: It cannot be read.
        """
        return _read_key_file(self.private_key_path, "private_key_path", name)

    @cached_property
    def cryptoKeyReader(self) -> Any:
        """The C++ library's object, as stock's own code takes it."""
        return stock.library().CryptoKeyReader(self.public_key_path, self.private_key_path)

    def __repr__(self) -> str:
        return f"CryptoKeyReader({self.public_key_path!r}, {self.private_key_path!r})"


def key_reader_of(value: Any) -> CryptoKeyReader | None:
    """A `crypto_key_reader` whose keys Python can read, or None without one.

    Raises:
        NotSupportedError: It is stock's own: its paths are in the C++ library.
        ConfigurationError: It is something else.
    """
    if value is None or isinstance(value, CryptoKeyReader):
        return value
    if hasattr(value, "cryptoKeyReader"):
        raise NotSupportedError(
            "crypto_key_reader is of the stock package, and only its library can read it: make a "
            "pulsar_encore.CryptoKeyReader, or use the stock transport"
        )
    raise ConfigurationError(
        f"crypto_key_reader must be a CryptoKeyReader, got {type(value).__name__}"
    )


class KeyFields(Protocol):
    """What a transport knows of a key that a message was encrypted with."""

    @property
    def key(self) -> str: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    def value(self) -> bytes: ...


class ContextFields(Protocol):
    """What a transport knows of how a message was encrypted; the C++ library's is one."""

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
        """Its name."""
        return self._key.key

    @property
    def value(self) -> bytes:
        """The data key, encrypted with this one."""
        return self._key.value()

    @property
    def metadata(self) -> dict[str, str]:
        """What the producer sent with it."""
        return self._key.metadata

    def __str__(self) -> str:
        return (
            f"EncryptionKey(key={self.key}, value_len={len(self.value)}, metadata={self.metadata})"
        )

    def __repr__(self) -> str:
        return str(self)


class EncryptionContext:
    """How a message was encrypted, and what is needed to decrypt it elsewhere."""

    def __init__(self, context: ContextFields) -> None:
        self._context = context

    def keys(self) -> list[EncryptionKey]:
        """Those that the data key was encrypted with."""
        return [EncryptionKey(each) for each in self._context.keys()]

    def param(self) -> bytes:
        """The initialisation vector."""
        return self._context.param()

    def algorithm(self) -> str:
        return self._context.algorithm()

    def compression_type(self) -> CompressionType:
        """Of the payload before it was encrypted."""
        return coerce(CompressionType, self._context.compression_type(), "compression_type")

    def uncompressed_message_size(self) -> int:
        """In bytes; 0 without compression."""
        return self._context.uncompressed_message_size()

    def batch_size(self) -> int:
        """Messages in the batch, -1 for a message that is its entry."""
        return self._context.batch_size()

    def is_decryption_failed(self) -> bool:
        """Whether `data()` is still encrypted (`ConsumerCryptoFailureAction.CONSUME`)."""
        return self._context.is_decryption_failed()

    def __str__(self) -> str:
        return (
            f"EncryptionContext(algorithm={self.algorithm()}, "
            f"compression_type={self.compression_type().name}, "
            f"uncompressed_message_size={self.uncompressed_message_size()}, "
            f"is_decryption_failed={self.is_decryption_failed()}, "
            f"keys=[{', '.join(str(key) for key in self.keys())}])"
        )

    def __repr__(self) -> str:
        return str(self)


def _read_key_file(path: str, option: str, name: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CryptoError(
            f"the key {name!r}: crypto_key_reader's {option}: cannot read {path!r}: "
            f"{error.strerror}"
        ) from error
