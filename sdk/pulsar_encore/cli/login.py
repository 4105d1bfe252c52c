"""How a command logs in to a cluster: options, environment variables and files.

No option takes a secret: secrets are in files or in the environment, where other users of the
machine cannot see them. Errors never show the content of a file.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import certifi  # the C++ client's own choice if no CA is named
from cyclopts import Group, Parameter

from .. import AuthenticationBasic, AuthenticationTLS, AuthenticationToken
from ..deadletters import printable
from ..errors import ConfigurationError
from ..options.checks import readable_file

DEFAULT_URL: Final = "pulsar://localhost:6650"
TOKEN: Final = "PULSAR_TOKEN"

CLUSTER: Final = Group(
    "Cluster", help="No option takes a secret. Files are read before connecting."
)
_PREFIX: Final = "PULSAR_"
_PLAIN: Final = "pulsar://"
_SECURE: Final = "pulsar+ssl://"
_URL: Final = re.compile(r"pulsar(\+ssl)?://(?P<hosts>[^\s/]+)/?")
_HOST: Final = re.compile(r"(?P<host>\[[^\s\]]+\]|[^\s:,]+)(:(?P<port>[0-9]{1,5}))?")
_SECRET: Final = re.compile(r"[!-~]+")


def _file(variable: str) -> Parameter:
    return Parameter(env_var=variable, show_default=False)


Url = Annotated[str, Parameter(env_var="PULSAR_URL", group=CLUSTER)]
AdminUrl = Annotated[str | None, Parameter(env_var="PULSAR_ADMIN_URL", group=CLUSTER)]


@Parameter(name="*", group=CLUSTER)
@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """How a command logs in, and which certificates it trusts. Empty texts count as missing."""

    token_file: Annotated[str, _file("PULSAR_TOKEN_FILE")] = ""
    """File with a token (a JWT, an OAuth2 access token), read again for each connection. Without
    it the environment variable PULSAR_TOKEN may hold the token itself."""

    basic_file: Annotated[str, _file("PULSAR_BASIC_FILE")] = ""
    """File with user:password, for basic authentication."""

    tls_trust_certs_file: Annotated[str, _file("PULSAR_TLS_TRUST_CERTS_FILE")] = ""
    """CA certificates to trust (PEM). By default the well-known ones."""

    tls_certificate_file: Annotated[str, _file("PULSAR_TLS_CERTIFICATE_FILE")] = ""
    """Client certificate (PEM). It is the login if there is no token and no password."""

    tls_private_key_file: Annotated[str, _file("PULSAR_TLS_PRIVATE_KEY_FILE")] = ""
    """Key of the client certificate (PEM), if it is in another file."""

    tls_validate_hostname: Annotated[bool, Parameter(env_var="PULSAR_TLS_VALIDATE_HOSTNAME")] = True
    """Check that the broker's certificate is issued for its host."""


NOBODY: Final = Login()


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ClusterAccess:
    """A service URL, and a login with its files read.

    Attributes:
        method: Pulsar's name of the login: token, basic, tls or none.
        secret: Returns the secret. Called for each connection.
        keywords: Keywords of the login, for `Client` and for the stock client.
    """

    url: str
    hosts: tuple[tuple[str, int], ...]
    method: str
    secret: Callable[[], str]
    keywords: dict[str, Any]
    tls: ssl.SSLContext | None


def access(url: str, login: Login, environment: Mapping[str, str] | None = None) -> ClusterAccess:
    """Read and check a login. An error names the option that is wrong."""
    url = url or DEFAULT_URL
    hosts = _hosts(url)
    tls = _tls(url, login)
    method, secret = _secret(login, (os.environ if environment is None else environment))
    certificate = login.tls_certificate_file
    key = login.tls_private_key_file or certificate
    authentication: Any = None
    if method == "token":
        authentication = AuthenticationToken(secret)
    elif method == "basic":
        authentication = AuthenticationBasic(*secret().split(":", 1))
    elif method == "tls":
        authentication = AuthenticationTLS(certificate, key)
    keywords: dict[str, Any] = {"authentication": authentication}
    if tls is not None:
        keywords["tls_validate_hostname"] = login.tls_validate_hostname
        keywords["tls_trust_certs_file_path"] = login.tls_trust_certs_file or None
        if certificate and method != "tls":
            keywords["tls_certificate_file_path"] = certificate
            keywords["tls_private_key_file_path"] = key
    return ClusterAccess(
        url=url, hosts=hosts, method=method, secret=secret, keywords=keywords, tls=tls
    )


def _hosts(url: str) -> tuple[tuple[str, int], ...]:
    if "@" in url:
        raise ConfigurationError(
            "--url (PULSAR_URL) contains an @: a service URL has no user and no password; "
            f"name a file with --token-file or --basic-file, or set {TOKEN}"
        )
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigurationError(
            "--url (PULSAR_URL) must be the service URL of brokers or proxies, like "
            f"pulsar://host:6650 or pulsar+ssl://host:6651, got {printable(url, 200)!r}"
        )
    default = 6650 if url.startswith(_PLAIN) else 6651
    return tuple(_host(url, each, default) for each in match["hosts"].split(","))


def _host(url: str, text: str, default: int) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    port = 0 if match is None else int(match["port"] or default)
    if match is None or not 1 <= port <= 65_535:
        raise ConfigurationError(
            f"--url (PULSAR_URL) {printable(url, 200)!r}: {printable(text, 200)!r} must be a host, "
            "or host:port with a number from 1 to 65535"
        )
    return match["host"].strip("[]"), port


def _secret(login: Login, environment: Mapping[str, str]) -> tuple[str, Callable[[], str]]:
    token = environment.get(TOKEN, "")
    if login.basic_file and (login.token_file or token):
        raise ConfigurationError(
            f"a token and a password: give one of {_option('token_file')} and "
            f"{_option('basic_file')}, and unset {TOKEN} for the latter"
        )
    if login.token_file:
        return "token", _TokenFile(login.token_file)
    if token:
        checked = _token(token, TOKEN)
        return "token", lambda: checked
    if login.basic_file:
        pair = _basic(login.basic_file)
        return "basic", lambda: pair
    return ("tls" if login.tls_certificate_file else "none"), str


class _TokenFile:
    """Returns the token that is in the file now, or the last one if the file has none."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._last = self._read()

    def __call__(self) -> str:
        # Called on a thread of the C++ client. A pipe can be read only once, and a file that is
        # being replaced may be missing for a moment.
        if os.path.isfile(self._path):
            with contextlib.suppress(ConfigurationError):
                self._last = self._read()
        return self._last

    def _read(self) -> str:
        name = _option("token_file")
        return _token(_content(self._path, name), f"{name}: {self._path!r}")


def _token(text: str, where: str) -> str:
    token = text.strip()
    if not token:
        raise ConfigurationError(f"{where}: it contains no token")
    if not _SECRET.fullmatch(token):
        raise ConfigurationError(f"{where}: it contains more than a token, which is one word")
    return token


def _basic(path: str) -> str:
    name = _option("basic_file")
    pair = _content(path, name).strip("\r\n")
    user, colon, password = pair.partition(":")
    if not (user and colon and password) or "\n" in pair:
        raise ConfigurationError(f"{name}: {path!r} must contain user:password on one line")
    return pair


def _content(path: str, name: str) -> str:
    # Not `readable_file`: a pipe, as in --token-file <(vault ...), is accepted like a file.
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(1 << 20)
    except OSError as error:
        raise ConfigurationError(f"{name}: cannot read {path!r}: {error.strerror}") from error
    except ValueError:  # not chained: the text of the cause would show the content
        raise ConfigurationError(f"{name}: {path!r} is not text") from None


def _tls(url: str, login: Login) -> ssl.SSLContext | None:
    files = {
        field: getattr(login, field)
        for field in ("tls_trust_certs_file", "tls_certificate_file", "tls_private_key_file")
        if getattr(login, field)
    }
    for field, path in files.items():
        readable_file(path, _option(field))
    if url.startswith(_PLAIN):
        if files:
            raise ConfigurationError(
                f"{_option(next(iter(files)))} is for TLS, and {url} is not: write "
                f"--url {_SECURE}..., with the port of TLS (6651)"
            )
        return None
    certificate, key = login.tls_certificate_file, login.tls_private_key_file
    if key and not certificate:
        raise ConfigurationError(
            f"{_option('tls_private_key_file')} is the key of a certificate: give "
            f"{_option('tls_certificate_file')} as well"
        )
    trusted = login.tls_trust_certs_file
    try:
        context = ssl.create_default_context(cafile=trusted or certifi.where())
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"{_option('tls_trust_certs_file')}: {trusted!r} contains no certificates (PEM)"
        ) from error
    context.check_hostname = login.tls_validate_hostname
    if certificate:
        where = key or certificate
        try:
            context.load_cert_chain(certificate, where, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"{_option('tls_certificate_file')} {certificate!r} cannot be used with the key "
                f"{where!r} of {_option('tls_private_key_file')}: both must be PEM, belong "
                "together, and the key have no password"
            ) from error
    return context


def _no_password() -> str:
    # OpenSSL would otherwise ask for the password at the terminal
    raise ValueError("the key is encrypted")


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')} ({_PREFIX}{field.upper()})"
