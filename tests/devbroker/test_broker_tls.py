"""TLS on its own port: the C++ client, client certificates, and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pulsar_encore.devbroker import Broker, BrokerSettings, BrokerThread, Credential, TlsSettings
from pulsar_encore.errors import ConfigurationError, TransportError
from pulsar_encore.wire import PROTOCOL_VERSION, frames, pb


class Authority:
    """A certificate authority that writes certificates into a folder. Its own is `ca.pem`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.file = self._write("ca", self._name, self._key, authority=True)[0]

    def sign(self, name: str) -> tuple[str, str]:
        """Write a certificate for 127.0.0.1 and its key."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._write(name, subject, ec.generate_private_key(ec.SECP256R1()))

    def _write(
        self,
        name: str,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        authority: bool = False,
    ) -> tuple[str, str]:
        now = datetime.datetime.now(datetime.UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        signing = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=authority,
            crl_sign=authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        # From 3.13 on, Python's default context refuses certificates without key identifiers.
        own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(signing, critical=True)
            .add_extension(own_id, critical=False)
            .add_extension(signer_id, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = self._folder / f"{name}.pem", self._folder / f"{name}.key.pem"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(files[0]), str(files[1])

    def tls(self, **fields: object) -> TlsSettings:
        """Return broker settings with a certificate of this authority."""
        certificate, key = self.sign("broker")
        return TlsSettings(certificate_file=certificate, key_file=key, **fields)  # type: ignore[arg-type]

    def context(self, client: str | None = None) -> ssl.SSLContext:
        """Return an SSL context of a client that trusts this authority, with a certificate of this
        name.
        """
        context = ssl.create_default_context(cafile=self.file)
        if client is not None:
            context.load_cert_chain(*self.sign(client))
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


async def greeted(broker: Broker, context: ssl.SSLContext, method: str | None = None) -> str:
    """Return the type of the broker's first answer, or "" if it closes without an answer."""
    port = int(broker.url_tls.rpartition(":")[2])
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            command = pb.CommandConnect(
                client_version="test",
                auth_method_name=method,
                protocol_version=PROTOCOL_VERSION,
            )
            writer.write(frames.encode(command))
            data = await reader.read(10_000)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
        if data:
            (frame,) = frames.FrameDecoder().feed(data)
            return str(pb.BaseCommand.Type.Name(frame.command.type))
    return ""


def test_the_c_client_connects_with_tls_and_on_the_plain_port(
    start: Callable[..., BrokerThread], authority: Authority
) -> None:
    broker = start(tls=authority.tls())
    assert broker.url_tls.startswith("pulsar+ssl://127.0.0.1:")
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    options = {"tls_trust_certs_file_path": authority.file, "tls_validate_hostname": True}
    secure = pulsar.Client(broker.url_tls, logger=quiet, **options)
    plain = pulsar.Client(broker.url, logger=quiet)
    try:
        consumer = secure.subscribe("t", "s")
        plain.create_producer("t").send(b"one")
        assert consumer.receive(5000).data() == b"one"
        (answer,) = [
            one.command.lookupTopicResponse
            for one in broker.recorded("LOOKUP_RESPONSE", "out")
            if one.command.lookupTopicResponse.brokerServiceUrlTls
        ]
        assert answer.brokerServiceUrlTls == broker.url_tls
    finally:
        secure.close()
        plain.close()


def test_the_c_client_is_authenticated_by_its_certificate(
    start: Callable[..., BrokerThread], authority: Authority
) -> None:
    known = (Credential(data="known", method="tls"),)
    broker = start(tls=authority.tls(client_ca_file=authority.file), credentials=known)
    client = pulsar.Client(
        broker.url_tls,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        tls_trust_certs_file_path=authority.file,
        authentication=pulsar.AuthenticationTLS(*authority.sign("known")),
    )
    try:
        client.create_producer("t").send(b"one")
    finally:
        client.close()


@pytest.mark.parametrize(
    ("name", "expected"), [("known", "CONNECTED"), ("unknown", "ERROR"), (None, "ERROR")]
)
async def test_the_role_of_a_client_can_come_from_its_certificate(
    authority: Authority, name: str | None, expected: str
) -> None:
    settings = BrokerSettings(
        tls=authority.tls(client_ca_file=authority.file),
        credentials=(Credential(data="known", method="tls"),),
    )
    async with Broker(settings) as broker:
        assert await greeted(broker, authority.context(name), "tls") == expected


@pytest.mark.parametrize(
    ("required", "client", "expected"),
    [
        (False, None, "CONNECTED"),
        (False, "somebody", "CONNECTED"),
        (True, "somebody", "CONNECTED"),
        (True, None, ""),
    ],
)
async def test_client_certificates_can_be_required(
    authority: Authority, required: bool, client: str | None, expected: str
) -> None:
    tls = authority.tls(client_ca_file=authority.file, require_client_certificate=required)
    async with Broker(BrokerSettings(tls=tls)) as broker:
        assert await greeted(broker, authority.context(client)) == expected


async def test_a_certificate_of_another_authority_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    tls = authority.tls(client_ca_file=authority.file)
    stranger = authority.context()
    stranger.load_cert_chain(*Authority(tmp_path).sign("somebody"))
    async with Broker(BrokerSettings(tls=tls)) as broker:
        assert await greeted(broker, stranger) == ""


async def test_both_ports_survive_an_outage(authority: Authority) -> None:
    async with Broker(BrokerSettings(tls=authority.tls())) as broker:
        before = broker.url, broker.url_tls
        broker.outage()
        assert await greeted(broker, authority.context()) == ""
        await broker.resume()
        assert (broker.url, broker.url_tls) == before
        assert await greeted(broker, authority.context()) == "CONNECTED"


async def test_without_tls_there_is_no_tls_address() -> None:
    async with Broker() as broker:
        with pytest.raises(ConfigurationError, match=r"BrokerSettings\.tls"):
            _ = broker.url_tls


async def test_a_tls_port_in_use_leaves_no_other_port_open(authority: Authority) -> None:
    async with Broker() as other:
        broker = Broker(BrokerSettings(tls=authority.tls(port=other.port)))
        with pytest.raises(TransportError, match=str(other.port)):
            await broker.start()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", broker.port)
        await broker.aclose()


async def test_errors_name_unreadable_files(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.sign("broker")
    for files in ((certificate, str(tmp_path / "none.pem")), (key, certificate)):
        tls = TlsSettings(certificate_file=files[0], key_file=files[1])
        broker = Broker(BrokerSettings(tls=tls))
        with pytest.raises(ConfigurationError, match="key_file"):
            await broker.start()
        await broker.aclose()


@pytest.mark.parametrize("fields", [{"port": 70_000}, {"require_client_certificate": True}])
def test_invalid_tls_settings_are_errors(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(fields))):
        TlsSettings(certificate_file="c", key_file="k", **fields)  # type: ignore[arg-type]
