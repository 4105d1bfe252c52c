"""Keys in files, as the options of a job name them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pulsar_encore import CryptoKeyReader

NAME = "pulsar-key"


class KeyFiles(NamedTuple):
    """Paths of one key pair."""

    public: str
    private: str

    @property
    def reader(self) -> CryptoKeyReader:
        """Return a key reader for producers and readers outside Spark."""
        return CryptoKeyReader(self.public, self.private)


@cache
def _pair(name: str) -> tuple[bytes, bytes]:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return public, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_files(folder: Path, name: str = "ours") -> KeyFiles:
    """Return the key pair of that name, always the same one in a process."""
    found = []
    for kind, pem in zip(("public", "private"), _pair(name), strict=True):
        path = folder / f"{name}-{kind}.pem"
        path.write_bytes(pem)
        found.append(str(path))
    return KeyFiles(*found)
