"""One connection before the client's: is the cluster there, are we let in, has it the topic?

Owns `probe`. The client cannot ask for a topic without making it where brokers make topics by
themselves, takes a refused login for a lost connection, and tries again until its time is up. Here
the broker is asked not to make anything, and what it says is the error. Refuses to do more: what
comes after is the client's.
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
_EXPIRED: Final = frozenset({9, 10})  # not yet valid, not valid any more


async def probe(access: ClusterAccess, topic: str | None, *, timeout_s: float) -> None:
    """Connect, log in, and ask for a topic without making it.

    Args:
        topic: Full name; None asks for none.
        timeout_s: Longest wait in s, trying again included.

    Raises:
        TransportError: With what to change. `result` is TopicNotFound where the cluster has no such
            topic. A broker from before Pulsar 3.0.6 cannot tell: there it passes.
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
    """The first that can be connected to; the client takes them in turn as well."""
    problem: TransportError | None = None
    for host, port in access.hosts:
        try:
            reader, writer = await asyncio.open_connection(
                host, port, ssl=access.tls, server_hostname=host if access.tls else None
            )
        except (OSError, UnicodeError) as error:  # TLS's are OSErrors; a host can be no name at all
            problem = _not_connected(access, host, port, error)
            problem.__cause__ = error
            continue
        try:
            return await _ProbeConnection(access, f"{host}:{port}", reader, writer).run(topic)
        finally:
            writer.transport.abort()  # nothing is on its way, and nobody waits for a goodbye
    assert problem is not None  # there is a host in every URL
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
        except ssl.SSLError as error:  # TLS 1.3 tells only now what it thinks of a certificate
            raise TransportError(
                f"the broker at {self._where} ends TLS ({error.reason}): check "
                "--tls-certificate-file and --tls-private-key-file, which it may ask for",
                result="AuthenticationError",
            ) from error
        except OSError as error:
            raise self._disconnected() from error
        raise self._disconnected()

    def _broker_text(self, text: str) -> str:
        """The broker's own, on one line; it was told a secret, and may repeat it."""
        for secret in (self._secret, self._secret.partition(":")[2]):  # a password alone as well
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
            f"the broker at {self._where} does not let this login in: {remedy} ({why})",
            result="AuthenticationError",
        )

    def _refused(self, error: pb.ServerError.ValueType, message: str, topic: str) -> TransportError:
        name = pb.ServerError.Name(error)
        remedy = {
            "TopicNotFound": "there is no such topic: check the name",
            "AuthorizationError": "the role that is logged in needs the permission to consume it",
        }.get(name, name)
        return TransportError(f"{topic}: {remedy} ({self._broker_text(message)})", result=name)

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
        tls_hint = "" if self._access.tls else ", and whether it is one of TLS (pulsar+ssl://...)"
        return TransportError(
            f"{self._where} hangs up without an answer: check --url, its port{tls_hint}",
            result="ConnectError",
        )


def _no_answer(url: str, timeout_s: float) -> TransportError:
    tls_hint = "" if url.startswith("pulsar+ssl") else ", that its port is not one of TLS"
    return TransportError(
        f"no answer from {url} in {timeout_s:g} s: check --url (PULSAR_URL){tls_hint}, that the "
        "broker is up, and that no firewall is on the way",
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
