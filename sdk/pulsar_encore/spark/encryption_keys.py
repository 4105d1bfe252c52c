"""Where a job finds the keys of encrypted topics: paths and names of functions, never a key.

Each process of a job reads the file or calls the function on its machine, so that no option, plan,
log or error contains a key.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Final

from ..errors import ConfigurationError, NotSupportedError
from ..values.crypto_keys import CryptoKeyReader
from ..wire.entry_encryption import check_key
from .option_parsers import load_function

_MAX_SHOWN: Final = 120  # the shortest private key in base64 is longer


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyReaderOptions:
    """The keys of one read or write.

    Attributes:
        private: True for a read, False for a write.
        path: A PEM file with the key for every name; or None.
        factory: "module:function" that creates a `CryptoKeyReader` instead; or None.
        names: The keys that a producer encrypts with. Messages name the keys of a read.
    """

    private: bool
    path: str | None = field(default=None, repr=False)
    factory: str | None = None
    names: tuple[str, ...] = ()

    @property
    def path_option(self) -> str:
        if self.private:
            return "pulsar.reader.cryptoPrivateKeyPath"
        return "pulsar.producer.cryptoPublicKeyPath"

    @property
    def factory_option(self) -> str:
        return f"pulsar.{'reader' if self.private else 'producer'}.cryptoKeyReader"

    def check(self) -> None:
        """Check in the driver that the file exists and has a key. The error shows no content."""
        if self.path is None:
            return
        try:
            check_key(self._content(), private=self.private)
        except NotSupportedError:
            return  # `cryptography` is not installed in the driver
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.path_option}: {error}") from None

    def reader(self, transport: str) -> CryptoKeyReader:
        """Return the key reader for a transport, in the process that reads or writes.

        Raises:
            ConfigurationError: if the file or the factory is missing or wrong on this machine.
            NotSupportedError: if the key reader finds keys in Python, and the transport is stock.
        """
        if self.path is not None:
            self._content()  # raises here, and not later for each entry
            return CryptoKeyReader(self.path, self.path)
        assert self.factory is not None  # one of the two is set
        option = self.factory_option
        key_reader = load_function(self.factory, option)()
        if not isinstance(key_reader, CryptoKeyReader):
            raise ConfigurationError(
                f"{option} {self.factory} must return a pulsar_encore.CryptoKeyReader, it returned "
                f"{type(key_reader).__name__}"
            )
        kind = type(key_reader)
        has_own_methods = (kind.private_key, kind.public_key) != (
            CryptoKeyReader.private_key,
            CryptoKeyReader.public_key,
        )
        if transport == "stock" and has_own_methods:
            raise NotSupportedError(
                f"{option} {self.factory} finds keys by methods of its own, which the stock "
                "transport does not ask: leave out pulsar.client.transport"
            )
        return key_reader

    def _content(self) -> bytes:
        assert self.path is not None
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except (OSError, ValueError) as error:
            shown = repr(self.path) if len(self.path) <= _MAX_SHOWN else "that file"
            reason = error.strerror if isinstance(error, OSError) else "no path"
            raise ConfigurationError(
                f"{self.path_option}: cannot read {shown} on {socket.gethostname()}: {reason}. The "
                "file must be there on the driver and on every worker"
            ) from None


def key_path(value: str, name: str) -> str:
    """Parse the path of a key file. The error does not show a text that looks like a key."""
    path = value.strip()
    if not path:
        raise ConfigurationError(f"{name} must not be blank")
    if "-----" in path or "\n" in path or path.startswith("data:"):
        raise ConfigurationError(
            f"{name} takes the path of a PEM file; the given text looks like a key and is not "
            "shown here: options may be seen by others"
        )
    return path


def keys_of(
    path: str | None, factory: str | None, *, private: bool, names: tuple[str, ...] = ()
) -> KeyReaderOptions | None:
    if path is None and factory is None:
        return None
    return KeyReaderOptions(private=private, path=path, factory=factory, names=names)
