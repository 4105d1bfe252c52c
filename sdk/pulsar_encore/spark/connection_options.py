"""How a job reaches its cluster: options of Spark as a client's keywords.

Owns `ConnectionOptions`. Everything in it can be pickled, because each of a job's processes makes
its own client. The names are the Java client's, as the JVM connector (pulsar-spark) takes them, and
so are the classes of authentication; whoever needs more names a function that makes the client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..authentication import AuthenticationBasic, AuthenticationTLS, AuthenticationToken
from ..authentication.oauth2 import AuthenticationOauth2
from ..client import Client
from ..errors import ConfigurationError, EncoreError
from .option_parsers import Parser, at_least, flag, function_name, load_function, nearest, words

_OPERATION_S: Final = 30.0  # the client's default


def _ms_as_s(value: str, name: str) -> int:
    return max(1, -(-at_least(1)(value, name) // 1000))


def web_address(value: str, name: str) -> str:
    """Of a cluster's web service.

    Raises:
        ConfigurationError: It cannot be one.
    """
    value = value.strip()
    scheme, mark, host = value.partition("://")
    if scheme not in ("http", "https") or not mark or not host.strip("/"):
        raise ConfigurationError(
            f"{name} must be like http://host:8080 or https://host:8443, got {value!r}"
        )
    return value


# Lower-cased names behind "pulsar.client." and the keyword of `Client` that each is.
_KEYWORDS: Final[Mapping[str, tuple[str, Parser[Any]]]] = {
    "operationtimeoutms": ("operation_timeout_seconds", _ms_as_s),
    "connectiontimeoutms": ("connection_timeout_ms", at_least(1)),
    "tlstrustcertsfilepath": ("tls_trust_certs_file_path", words),
    "tlsallowinsecureconnection": ("tls_allow_insecure_connection", flag),
    "tlshostnameverificationenable": ("tls_validate_hostname", flag),
    "tlscertificatefilepath": ("tls_certificate_file_path", words),
    "tlskeyfilepath": ("tls_private_key_file_path", words),
    "listenername": ("listener_name", words),
    "transport": ("transport", words),
}
_AUTHENTICATION: Final = ("authpluginclassname", "authparams")
_SPELLED: Final = (
    "operationTimeoutMs",
    "connectionTimeoutMs",
    "tlsTrustCertsFilePath",
    "tlsAllowInsecureConnection",
    "tlsHostnameVerificationEnable",
    "tlsCertificateFilePath",
    "tlsKeyFilePath",
    "listenerName",
    "transport",
    "authPluginClassName",
    "authParams",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionOptions:
    """What a client is made of.

    Attributes:
        service_url: As `Client` takes it.
        admin_url: Of the brokers' web service, or None.
        settings: Lower-cased names behind "pulsar.client." and their texts; never shown, as they
            may be secrets.
        factory: "module:function" that makes the client instead; or None.
    """

    service_url: str
    admin_url: str | None = None
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    factory: str | None = None

    def __post_init__(self) -> None:
        for name, _ in self.settings:
            if name not in _KEYWORDS and name not in _AUTHENTICATION:
                raise ConfigurationError(
                    f"there is no option pulsar.client.{name}{nearest(name, _SPELLED)}; there are "
                    f"{', '.join(_SPELLED)}"
                )
        if self.factory is not None:
            function_name(self.factory, "clientFactory")
        self.keywords()  # what is wrong is said at once, and not in a task

    def keywords(self) -> dict[str, Any]:
        """Those of `Client`, but for the URL.

        Raises:
            ConfigurationError: One is wrong; secrets are not shown.
        """
        given = dict(self.settings)
        keywords: dict[str, Any] = {
            _KEYWORDS[name][0]: _KEYWORDS[name][1](value, f"pulsar.client.{name}")
            for name, value in given.items()
            if name in _KEYWORDS
        }
        authentication = _authentication(*(given.get(name) for name in _AUTHENTICATION))
        if authentication is not None:
            keywords["authentication"] = authentication
        return keywords

    @property
    def operation_timeout_s(self) -> float:
        """Longest wait for one answer of a broker; the default if a factory makes the client."""
        found: float = self.keywords().get("operation_timeout_seconds", _OPERATION_S)
        return found

    def open(self) -> Client:
        """A client of this process.

        Raises:
            ConfigurationError: A value is wrong, or the factory is not there or makes no client.
        """
        if self.factory is None:
            try:
                return Client(self.service_url, **self.keywords())
            except ConfigurationError as error:
                raise in_options(error) from error
        make = load_function(self.factory, "clientFactory")
        try:
            made = make(self.service_url, **self.keywords())
        except EncoreError:
            raise
        except Exception as error:
            raise ConfigurationError(
                f"clientFactory {self.factory} was called with the service URL and the keywords of "
                f"Client, and raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(made, Client):
            raise ConfigurationError(
                f"clientFactory {self.factory} must return a pulsar_encore.Client, it returned "
                f"{type(made).__name__}"
            )
        return made


def in_options(error: ConfigurationError, url: str = "service.url") -> ConfigurationError:
    """The same error with options of Spark for the keywords of `Client`.

    Args:
        error: Of a client.
        url: The option that its URL is from.
    """
    names = {keyword: name for name, (keyword, _) in _KEYWORDS.items()}
    spelled = {each.lower(): f"pulsar.client.{each}" for each in _SPELLED}
    text = re.sub(r"\bservice_url\b", url, str(error))
    for keyword, name in names.items():
        text = re.sub(rf"\b{keyword}(?= must|:)", spelled[name], text)
    return ConfigurationError(text)


def _token(params: str) -> AuthenticationToken:
    if not params.strip():
        raise ConfigurationError(
            "pulsar.client.authParams of a token must be token:..., or file:///path of one"
        )
    return AuthenticationToken(params)


def _authentication(plugin: str | None, params: str | None) -> Any:
    """The object for Java's class name and its parameters."""
    if plugin is None:
        if params is not None:
            raise ConfigurationError(
                "pulsar.client.authParams needs pulsar.client.authPluginClassName"
            )
        return None
    kind = plugin.rpartition(".")[2].lower()
    if kind not in _KINDS:
        raise ConfigurationError(
            f"pulsar.client.authPluginClassName {plugin!r} is not known here; known are "
            "AuthenticationToken, AuthenticationTls, AuthenticationBasic and AuthenticationOAuth2 "
            "(with or without Java's package), and clientFactory for all else"
        )
    return _KINDS[kind](params or "")


def _tls(params: str) -> AuthenticationTLS:
    named = _named(params)
    certificate, key = named.get("tlscertfile"), named.get("tlskeyfile")
    if not certificate or not key:
        raise ConfigurationError(
            "pulsar.client.authParams of TLS must be tlsCertFile:/path,tlsKeyFile:/path"
        )
    return AuthenticationTLS(certificate, key)


def _named(params: str) -> dict[str, str]:
    """``name:value,name:value`` or a JSON object, names lower-cased."""
    if params.lstrip().startswith("{"):
        try:
            return {name.lower(): str(value) for name, value in json.loads(params).items()}
        except ValueError:
            return {}
    pairs = (each.partition(":") for each in params.split(","))
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _basic(params: str) -> AuthenticationBasic:
    if params.lstrip().startswith("{"):
        named = _named(params)
        user, password = named.get("userid", ""), named.get("password", "")
    else:
        user, _, password = params.partition(":")
    if not user or not password:
        raise ConfigurationError(
            'pulsar.client.authParams of basic must be user:password or {"userId": .., '
            '"password": ..}'
        )
    return AuthenticationBasic(user, password)


def _oauth2(params: str) -> AuthenticationOauth2:
    """Java's names are camelCase where the C++ library's, which ours reads, have underscores."""
    try:
        given = json.loads(params)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ConfigurationError(
            "pulsar.client.authParams of OAuth2 must be a JSON object with issuerUrl, privateKey "
            "and, if need be, audience and scope"
        )
    names = {"issuerUrl": "issuer_url", "privateKey": "private_key"}
    return AuthenticationOauth2(json.dumps({names.get(k, k): v for k, v in given.items()}))


_KINDS: Final[Mapping[str, Callable[[str], Any]]] = {
    "authenticationtoken": _token,
    "authenticationtls": _tls,
    "authenticationbasic": _basic,
    "authenticationoauth2": _oauth2,
}
