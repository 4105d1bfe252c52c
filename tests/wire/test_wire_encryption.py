"""Encryption: entries from Java and from us are readable, and altered entries are errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import encrypted_by_java as java
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pulsar_encore.errors import ConfigurationError, NotSupportedError
from pulsar_encore.wire import pb
from pulsar_encore.wire.entry_encryption import (
    DATA_KEY_ENTRIES,
    DATA_KEY_MS,
    TAG_SIZE,
    DataKeys,
    DecryptionError,
    Encryptor,
    PublicKey,
    is_encrypted,
)

Reader = Callable[[str, Mapping[str, str]], "bytes | None"]


def public(private: bytes) -> PublicKey:
    return PublicKey(public_pem(load_pem_private_key(private, None).public_key()))


def public_pem(key: object) -> bytes:
    pem: bytes = key.public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem


def private_pem(key: object) -> bytes:
    pem: bytes = key.private_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return pem


def reader(**keys: bytes) -> Reader:
    return lambda name, metadata: keys.get(name)


def entry() -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)


RSA_OF_512_BITS = b"""\
-----BEGIN PUBLIC KEY-----
MFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAKq7gc11KcFfpSRLEdW3vLR9M5Cp5uHc
qYsgvLRLDsb7MCraTMn1j2idHTT9KyD+egSL/yDnrFWyDdBr9KtEMYcCAwEAAQ==
-----END PUBLIC KEY-----
"""
RSA = {"rsa": public(java.RSA_PRIVATE)}
EC = {"ec": PublicKey(java.EC_PUBLIC)}


@pytest.mark.parametrize(
    ("metadata", "payload", "name", "private"),
    [
        (java.RSA_METADATA, java.RSA_PAYLOAD, "rsa", java.RSA_PRIVATE),
        (java.EC_METADATA, java.EC_PAYLOAD, "prime256v1x", java.EC_PRIVATE),
    ],
    ids=["RSA", "EC"],
)
def test_entries_encrypted_by_java_are_decrypted(
    metadata: bytes, payload: bytes, name: str, private: bytes
) -> None:
    asked = []

    def private_key(name: str, sent_along: Mapping[str, str]) -> bytes:
        asked.append((name, sent_along))
        return private

    fields = pb.MessageMetadata.FromString(metadata)
    assert is_encrypted(fields)
    assert DataKeys().decrypt(fields, payload, private_key) == b"hello from java " + name.encode()
    assert asked == [(name, {"who": name})]


@pytest.mark.parametrize("size", [0, 1, 100_000])
@pytest.mark.parametrize("recipients", [RSA, EC, {**RSA, **EC}], ids=["RSA", "EC", "both"])
def test_each_recipient_can_decrypt(recipients: dict[str, PublicKey], size: int) -> None:
    fields, payload = entry(), b"x" * size
    assert not is_encrypted(fields)
    encrypted = Encryptor(recipients, now_ms=0).encrypt(fields, payload, now_ms=0)
    assert is_encrypted(fields) and len(encrypted) == size + TAG_SIZE
    assert [each.key for each in fields.encryption_keys] == list(recipients)
    private = {"rsa": java.RSA_PRIVATE, "ec": java.EC_PRIVATE}
    for name in recipients:
        clear = DataKeys().decrypt(fields, encrypted, reader(**{name: private[name]}))
        assert clear == payload


@pytest.mark.parametrize("curve", [ec.SECP521R1(), ec.SECP384R1(), ec.SECP256K1()])
def test_other_curves_work(curve: ec.EllipticCurve) -> None:
    key = ec.generate_private_key(curve)
    fields = entry()
    recipients = {"k": PublicKey(public_pem(key.public_key()))}
    encrypted = Encryptor(recipients, now_ms=0).encrypt(fields, b"text", now_ms=0)
    assert DataKeys().decrypt(fields, encrypted, reader(k=private_pem(key))) == b"text"


def test_metadata_of_a_producers_key_is_sent() -> None:
    fields = entry()
    key = PublicKey(java.EC_PUBLIC, {"version": "7"})
    encrypted = Encryptor({"ec": key}, now_ms=0).encrypt(fields, b"text", now_ms=0)
    asked = []

    def private_key(name: str, metadata: Mapping[str, str]) -> bytes:
        asked.append((name, metadata))
        return java.EC_PRIVATE

    DataKeys().decrypt(fields, encrypted, private_key)
    assert asked == [("ec", {"version": "7"})]


def test_encrypting_again_replaces_the_encryption_metadata() -> None:
    fields = pb.MessageMetadata.FromString(java.RSA_METADATA)
    fields.encryption_algo = "other"
    encrypted = Encryptor(EC, now_ms=0).encrypt(fields, b"text", now_ms=0)
    assert [each.key for each in fields.encryption_keys] == ["ec"]
    assert not fields.HasField("encryption_algo")
    assert DataKeys().decrypt(fields, encrypted, reader(ec=java.EC_PRIVATE)) == b"text"


def test_a_data_key_is_used_for_four_hours_and_a_nonce_once() -> None:
    encryptor = Encryptor(EC, now_ms=1000)
    wrapped, nonces = [], set()
    for now_ms in (1000, 1000 + DATA_KEY_MS - 1, 1000 + DATA_KEY_MS, 1000 + DATA_KEY_MS):
        fields = entry()
        encryptor.encrypt(fields, b"text", now_ms=now_ms)
        wrapped.append(fields.encryption_keys[0].value)
        nonces.add(fields.encryption_param)
    assert wrapped[0] == wrapped[1] != wrapped[2] == wrapped[3]
    assert len(nonces) == 4 and {len(nonce) for nonce in nonces} == {12}


def test_a_data_key_is_renewed_before_random_nonces_may_collide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert DATA_KEY_ENTRIES == 1 << 32
    monkeypatch.setattr("pulsar_encore.wire.entry_encryption.DATA_KEY_ENTRIES", 2)
    encryptor = Encryptor(EC, now_ms=0)
    wrapped = []
    for _ in range(3):
        fields = entry()
        encryptor.encrypt(fields, b"text", now_ms=0)
        wrapped.append(fields.encryption_keys[0].value)
    assert wrapped[0] == wrapped[1] != wrapped[2]


def test_a_data_key_is_unwrapped_once() -> None:
    encryptor, keys = Encryptor(EC, now_ms=0), DataKeys()
    asked = []

    def private_key(name: str, metadata: Mapping[str, str]) -> bytes:
        asked.append(name)
        return java.EC_PRIVATE

    for _ in range(3):
        fields = entry()
        encrypted = encryptor.encrypt(fields, b"text", now_ms=0)
        keys.decrypt(fields, encrypted, private_key)
    assert asked == ["ec"] and len(keys) == 1


def test_the_least_recently_used_data_key_is_forgotten() -> None:
    keys, asked = DataKeys(most=2), []

    def private_key(name: str, metadata: Mapping[str, str]) -> bytes:
        asked.append(name)
        return java.EC_PRIVATE

    sealed = {}
    for name in "abc":
        fields = entry()
        sealed[name] = (
            fields,
            Encryptor({name: EC["ec"]}, now_ms=0).encrypt(fields, b"", now_ms=0),
        )
    for name in "abacab":
        keys.decrypt(*sealed[name], private_key)
        assert len(keys) <= 2
    assert "".join(asked) == "abcb"


@pytest.mark.parametrize(
    "keys", [{}, {"ec": java.RSA_PRIVATE}, {"ec": b"no key"}], ids=["none", "other", "no PEM"]
)
def test_the_error_names_a_missing_or_wrong_private_key(keys: dict[str, bytes]) -> None:
    fields = entry()
    encrypted = Encryptor(EC, now_ms=0).encrypt(fields, b"text", now_ms=0)
    with pytest.raises(DecryptionError, match="'ec'") as caught:
        DataKeys().decrypt(fields, encrypted, reader(**keys))
    assert caught.value.validation_error == pb.CommandAck.DecryptionError


@pytest.mark.parametrize("key", [ed25519.Ed25519PrivateKey.generate()])
def test_the_error_names_a_private_key_of_another_kind(key: object) -> None:
    fields = entry()
    encrypted = Encryptor(EC, now_ms=0).encrypt(fields, b"text", now_ms=0)
    with pytest.raises(DecryptionError, match="use RSA or EC"):
        DataKeys().decrypt(fields, encrypted, reader(ec=private_pem(key)))


def altered(data: bytes, at: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


@pytest.mark.parametrize("recipients", [RSA, EC], ids=["RSA", "EC"])
@pytest.mark.parametrize("at", [0, 80, -1])
def test_an_altered_data_key_is_detected(recipients: dict[str, PublicKey], at: int) -> None:
    fields = entry()
    encrypted = Encryptor(recipients, now_ms=0).encrypt(fields, b"text", now_ms=0)
    wrapped = fields.encryption_keys[0]
    wrapped.value = altered(wrapped.value, at % len(wrapped.value))
    with pytest.raises(DecryptionError):
        DataKeys().decrypt(fields, encrypted, reader(rsa=java.RSA_PRIVATE, ec=java.EC_PRIVATE))


@pytest.mark.parametrize("wrapped", [b"", b"\x04", bytes(85), bytes(300)])
def test_a_data_key_of_a_wrong_length_is_an_error(wrapped: bytes) -> None:
    fields = entry()
    fields.encryption_keys.add(key="ec", value=wrapped)
    fields.encryption_param = bytes(12)
    with pytest.raises(DecryptionError):
        DataKeys().decrypt(fields, b"x" * 20, reader(ec=java.EC_PRIVATE))


@pytest.mark.parametrize("cut", [0, 1, 15, 16, 19])
def test_an_altered_or_cut_payload_is_detected(cut: int) -> None:
    fields = entry()
    encrypted = Encryptor(EC, now_ms=0).encrypt(fields, b"text", now_ms=0)
    for broken in (encrypted[:cut], altered(encrypted, cut)):
        with pytest.raises(DecryptionError, match="altered"):
            DataKeys().decrypt(fields, broken, reader(ec=java.EC_PRIVATE))


def test_a_nonce_of_another_length_is_refused() -> None:
    fields = pb.MessageMetadata.FromString(java.EC_METADATA)
    fields.encryption_param = b"short"
    with pytest.raises(DecryptionError, match="nonce of 5 bytes"):
        DataKeys().decrypt(fields, java.EC_PAYLOAD, reader(ec=java.EC_PRIVATE))


@pytest.mark.parametrize(
    ("pem", "why"),
    [
        (b"no key", "no readable public key"),
        (java.EC_PRIVATE, "no readable public key"),
        (public_pem(ed25519.Ed25519PrivateKey.generate().public_key()), "use RSA or EC"),
    ],
)
def test_an_invalid_recipient_is_an_error_that_names_it(pem: bytes, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"encryption key 'r': .*{why}"):
        Encryptor({"r": PublicKey(pem)}, now_ms=0)


def test_a_short_rsa_key_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigurationError, match="RSA key of 512 bits is too short"):
        Encryptor({"r": PublicKey(RSA_OF_512_BITS)}, now_ms=0)


def test_encryption_without_recipients_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one key"):
        Encryptor({}, now_ms=0)
    with pytest.raises(ConfigurationError, match="at least 1 data key"):
        DataKeys(most=0)


def test_the_error_without_the_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    DataKeys()  # loads modules that the test then removes, whichever test runs first
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    monkeypatch.delitem(sys.modules, "pulsar_encore.wire.ciphers")
    monkeypatch.delattr("pulsar_encore.wire.ciphers")
    for make in (lambda: Encryptor(EC, now_ms=0), DataKeys):
        with pytest.raises(NotSupportedError, match=r"pip install pulsar-encore\[encryption\]"):
            make()


def test_no_key_is_shown() -> None:
    encryptor, keys = Encryptor(EC, now_ms=0), DataKeys()
    assert "PRIVATE" not in repr(encryptor) + repr(keys) + repr(vars(encryptor))
