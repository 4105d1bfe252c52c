"""Keys of recipients, and the data keys that are wrapped with them.

For RSA, a data key is wrapped by OAEP with SHA-1, MGF1-SHA-1 and an empty label. For EC it is
wrapped by ECIES as Bouncy Castle writes it with a MAC key of 128 bits: ``V C T``. V is an ephemeral
public point (uncompressed), C is the data key XORed with KDF2-SHA-1 of (V, shared secret), and T is
HMAC-SHA-1 over C and eight zero bytes. `pulsar-client` supports RSA only, Java both. Other kinds of
keys, and private keys with a pass phrase, are not supported.
"""

from __future__ import annotations

import hmac
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.x963kdf import X963KDF

__all__ = [
    "AESGCM",
    "InvalidTag",
    "KeyMaterialError",
    "RecipientKey",
    "load",
    "load_private",
    "unwrap",
    "wrap",
]

RecipientKey: TypeAlias = rsa.RSAPublicKey | ec.EllipticCurvePublicKey
PrivateKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

_MAC_KEY: Final = 16  # bytes
_MAC: Final = 20
_NO_ENCODING: Final = bytes(8)  # the length in bits of the encoding vector, which is not used


class KeyMaterialError(Exception):
    """A key is malformed, of an unsupported kind, or does not fit the data. The text says which."""


def load(pem: bytes) -> RecipientKey:
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyMaterialError(f"no readable public key in PEM: {error}") from error
    if isinstance(key, (rsa.RSAPublicKey, ec.EllipticCurvePublicKey)):
        return key
    raise KeyMaterialError(f"{type(key).__name__} can't wrap keys; use RSA or EC")


def wrap(key: RecipientKey, data_key: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePublicKey):
        return _ecies_wrap(key, data_key)
    try:
        return key.encrypt(data_key, _oaep())
    except ValueError as error:
        bits = key.key_size
        raise KeyMaterialError(f"RSA key of {bits} bits is too short; use 2048 or more") from error


def load_private(pem: bytes) -> PrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyMaterialError(f"no readable private key in PEM: {error}") from error
    if isinstance(key, (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey)):
        return key
    raise KeyMaterialError(f"{type(key).__name__} can't unwrap keys; use RSA or EC")


def unwrap(pem: bytes, wrapped: bytes) -> bytes:
    key = load_private(pem)
    try:
        if isinstance(key, rsa.RSAPrivateKey):
            return key.decrypt(wrapped, _oaep())
        return _ecies_unwrap(key, wrapped)
    except ValueError as error:
        raise KeyMaterialError("wrapped for another key, or altered") from error


def _oaep() -> padding.OAEP:
    return padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), label=None)


def _ecies_wrap(key: ec.EllipticCurvePublicKey, data_key: bytes) -> bytes:
    ephemeral = ec.generate_private_key(key.curve)
    point = ephemeral.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    shared = ephemeral.exchange(ec.ECDH(), key)
    mac_key, pad = _ecies_keys(point, shared, len(data_key))
    hidden = _xor(data_key, pad)
    return point + hidden + _ecies_mac(mac_key, hidden)


def _ecies_unwrap(key: ec.EllipticCurvePrivateKey, wrapped: bytes) -> bytes:
    end = 1 + 2 * ((key.curve.key_size + 7) // 8)
    if len(wrapped) <= end + _MAC:
        raise ValueError(f"{len(wrapped)} bytes")
    point, hidden, mac = wrapped[:end], wrapped[end:-_MAC], wrapped[-_MAC:]
    ephemeral = ec.EllipticCurvePublicKey.from_encoded_point(key.curve, point)
    mac_key, pad = _ecies_keys(point, key.exchange(ec.ECDH(), ephemeral), len(hidden))
    if not hmac.compare_digest(mac, _ecies_mac(mac_key, hidden)):
        raise ValueError("MAC")
    return _xor(hidden, pad)


def _ecies_keys(point: bytes, shared: bytes, size: int) -> tuple[bytes, bytes]:
    """Return the MAC key and the pad. KDF2 and the KDF of X9.63 are the same function."""
    derived = X963KDF(hashes.SHA1(), _MAC_KEY + size, sharedinfo=None).derive(point + shared)
    return derived[:_MAC_KEY], derived[_MAC_KEY:]


def _ecies_mac(key: bytes, hidden: bytes) -> bytes:
    return hmac.digest(key, hidden + _NO_ENCODING, "sha1")


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(len(left))
