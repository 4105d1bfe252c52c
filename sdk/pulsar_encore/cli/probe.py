"""Check the cluster, the login and the topic over one connection, before the client connects.

The client cannot ask for a topic without creating it if topic auto-creation is on. It also takes a
refused login for a lost connection, and retries until its time is up.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from google.protobuf.message import Message

from ..deadletters import printable
from ..errors import TransportError
from ..version import VERSION
from ..wire import PROTOCOL_VERSION, FrameDecoder, FrameError, encode, pb
from .login import TOKEN, ClusterAccess

_REQUEST: Final = 1
_MAX_MESSAGE_LENGTH: Final = 300
_RETRY_DELAY_S: Final = 0.3
_RETRYABLE: Final = frozenset({"MetadataError", "ServiceNotReady", "TooManyRequests"})
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
_HOST_MISMATCH: Final = frozenset({62, 64})  # OpenSSL's X509_V_ERR_*_MISMATCH: host, IP address
_EXPIRED: Final = frozenset({9, 10})  # not yet valid, expired


async def probe(access: ClusterAccess, topic: str | None, *, timeout_s: float) -> None:
    """Connect, log in, and ask for a topic without creating it; None asks for no topic.

    Raises:
        TransportError: with the remedy in its text. `result` is TopicNotFound if the topic does not
            exist. A broker before Pulsar 3.0.6 cannot tell, and passes.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await _first_host(access, topic)
        except TimeoutError as error:
            raise _no_answer(access.url, timeout_s) from error
        except TransportError as error:
            if error.result not in _RETRYABLE or loop.time() + _RETRY_DELAY_S > deadline:
                raise
        await asyncio.sleep(_RETRY_DELAY_S)


async def _first_host(access: ClusterAccess, topic: str | None) -> None:
    """Probe the first host that accepts a connection; the client tries them in turn, too."""
    problem: TransportError | None = None
    for host, port in access.hosts:
        try:
            reader, writer = await asyncio.open_connection(
                host, port, ssl=access.tls, server_hostname=host if access.tls else None
            )
        # TLS errors are OSErrors; an invalid host name is a UnicodeError
        except (OSError, UnicodeError) as error:
            problem = _not_connected(access, host, port, error)
            problem.__cause__ = error
            continue
        try:
            return await _ProbeConnection(access, f"{host}:{port}", reader, writer).run(topic)
        finally:
            writer.transport.abort()  # no data is in flight, so close without a handshake
    assert problem is not None  # every URL has a host
    raise problem


class _ProbeConnection:
    def __init__(
        self,
        access: ClusterAccess,
        where: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._access = access
        self._where = where
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._received = b""
        self._secret = access.secret()

    async def run(self, topic: str | None) -> None:
        flags = pb.FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True)
        method = self._access.method
        answer = await self._ask(
            pb.CommandConnect(
                client_version=f"pulsar-encore {VERSION}",
                auth_method_name=method,
                auth_data=self._secret.encode(),
                feature_flags=flags,
                protocol_version=PROTOCOL_VERSION,
            )
        )
        kinds = pb.BaseCommand.Type
        if answer.type == kinds.ERROR:
            raise self._refused_login(answer.error)
        if answer.type != kinds.CONNECTED:
            raise self._login_refused(f"it answers with {kinds.Name(answer.type)}")
        broker_flags = answer.connected.feature_flags
        if (
            topic is None
            or not broker_flags.supports_get_partitioned_metadata_without_auto_creation
        ):
            return
        answer = await self._ask(
            pb.CommandPartitionedTopicMetadata(
                topic=topic, request_id=_REQUEST, metadata_auto_creation_enabled=False
            )
        )
        found = answer.partitionMetadataResponse
        if answer.type == kinds.ERROR:
            raise self._refused(answer.error.error, answer.error.message, topic)
        if found.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
            raise self._refused(found.error, found.message, topic)

    async def _ask(self, command: Message) -> pb.BaseCommand:
        try:
            self._writer.write(encode(command))
            while data := await self._reader.read(1 << 16):
                self._received += data[:8]
                for frame in self._decoder.feed(data):
                    if frame.command.type == pb.BaseCommand.PING:
                        self._writer.write(encode(pb.CommandPong()))
                    else:
                        return frame.command
        except FrameError as error:
            raise self._wrong_protocol() from error
        except ssl.SSLError as error:  # with TLS 1.3 the broker rejects a certificate only now
            raise TransportError(
                f"the broker at {self._where} ends TLS ({error.reason}): check "
                "--tls-certificate-file and --tls-private-key-file, which it may require",
                result="AuthenticationError",
            ) from error
        except OSError as error:
            raise self._disconnected() from error
        raise self._disconnected()

    def _broker_text(self, text: str) -> str:
        """Return the broker's text on one line, without the secret, which it may repeat."""
        # also without the user of user:password
        for secret in (self._secret, self._secret.partition(":")[2]):
            if secret:
                text = text.replace(secret, "***")
        return printable(text, _MAX_MESSAGE_LENGTH)

    def _refused_login(self, error: pb.CommandError) -> TransportError:
        name = pb.ServerError.Name(error.error)
        broker_text = self._broker_text(error.message)
        if name in _RETRYABLE:
            return TransportError(
                f"the broker at {self._where} is not ready: {broker_text}", result=name
            )
        return self._login_refused(f"it says {name}: {broker_text}")

    def _login_refused(self, why: str) -> TransportError:
        remedy = {
            "none": f"log in with --token-file, {TOKEN}, --basic-file or --tls-certificate-file",
            "token": f"check the token of --token-file or {TOKEN}",
            "basic": "check the user and the password in --basic-file",
            "tls": "check --tls-certificate-file",
        }[self._access.method]
        return TransportError(
            f"the broker at {self._where} refuses this login: {remedy} ({why})",
            result="AuthenticationError",
        )

    def _refused(self, error: pb.ServerError.ValueType, message: str, topic: str) -> TransportError:
        name = pb.ServerError.Name(error)
        remedy = {
            "TopicNotFound": "there is no such topic: check the name",
            "AuthorizationError": "the role that is logged in needs the permission to consume it",
        }.get(name, name)
        text = self._broker_text(message)
        said = f" ({text})" if text else ""
        return TransportError(f"{topic}: {remedy}{said}", result=name)

    def _wrong_protocol(self) -> TransportError:
        received = self._received
        if received.startswith(b"HTTP"):
            what = "speaks HTTP: --url takes the service URL, not that of the admin API"
        elif received.startswith(_TLS_RECORDS):
            what = "speaks TLS: write --url pulsar+ssl://..."
        else:
            what = "does not speak Pulsar's protocol: check --url and its port"
        return TransportError(f"{self._where} {what}", result="ConnectError")

    def _disconnected(self) -> TransportError:
        tls_hint = "" if self._access.tls else ", and whether the port uses TLS (pulsar+ssl://...)"
        return TransportError(
            f"{self._where} closes without an answer: check --url, its port{tls_hint}",
            result="ConnectError",
        )


def _no_answer(url: str, timeout_s: float) -> TransportError:
    tls_hint = "" if url.startswith("pulsar+ssl") else ", that its port does not use TLS"
    return TransportError(
        f"no answer from {url} in {timeout_s:g} s: check --url (PULSAR_URL){tls_hint}, that the "
        "broker is up, and that no firewall is in between",
        result="Timeout",
        retryable=True,
    )


def _not_connected(
    access: ClusterAccess, host: str, port: int, error: OSError | UnicodeError
) -> TransportError:
    where = f"{host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return TransportError(_untrusted(where, error), result="ConnectError")
    if access.tls and isinstance(error, (ssl.SSLError, ConnectionResetError)):
        why = getattr(error, "reason", None) or type(error).__name__
        return TransportError(
            f"no TLS with {where} ({why}): check its port; one without TLS takes --url pulsar://...",
            result="ConnectError",
        )
    if isinstance(error, (socket.gaierror, UnicodeError)):
        why = "no such host"
    elif isinstance(error, ConnectionRefusedError):
        why = "nobody listens there"
    else:
        why = error.strerror or type(error).__name__
    return TransportError(
        f"no answer from {access.url}: check --url (PULSAR_URL), and that the broker is up "
        f"({where}: {why})",
        result="ConnectError",
        retryable=True,
    )


def _untrusted(where: str, error: ssl.SSLCertVerificationError) -> str:
    what = f"the certificate of {where}"
    if error.verify_code in _HOST_MISMATCH:
        return (
            f"{what} is another host's: write the host in --url as the certificate does, or "
            f"--no-tls-validate-hostname ({error.verify_message})"
        )
    if error.verify_code in _EXPIRED:
        return f"{what} is out of date: the broker needs a new one ({error.verify_message})"
    return (
        f"{what} is not trusted: name the file with its CA in --tls-trust-certs-file "
        f"({error.verify_message})"
    )
