"""The connection options of a job as the keywords of a `Client`.

`ConnectionOptions` can be pickled, because each process of a job creates its own client. Options
and authentication classes have the names of the Java client, as in the JVM connector
(pulsar-spark).
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
from .option_parsers import function_name, load_function, nearest
from .option_table import CLIENT, OPTIONS, Scope, Values

_OPERATION_TIMEOUT_S: Final = 30.0  # the client's default
_OPTIONS: Final = {each.name.lower(): each for each in OPTIONS if each.scope is Scope.CLIENT}


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionOptions:
    """How to create a client.

    Attributes:
        settings: Texts of the ``pulsar.client.`` options by lower-cased name without the prefix.
            Not shown, because some are secrets.
        factory: "module:function" that creates the client instead, or None.
    """

    service_url: str
    admin_url: str | None = None
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    factory: str | None = None

    def __post_init__(self) -> None:
        known = [each.name for each in _OPTIONS.values()]
        for name, _ in self.settings:
            if name not in _OPTIONS:
                raise ConfigurationError(
                    f"there is no option {CLIENT}{name}{nearest(name, known)}; there are "
                    f"{', '.join(known)}"
                )
        if self.factory is not None:
            function_name(self.factory, "clientFactory")
        self.keywords()

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of `Client`, except for the URL.

        Raises ConfigurationError for a wrong value, with a text that shows no secret.
        """
        given = dict(self.settings)
        keywords: dict[str, Any] = {}
        for name, text in given.items():
            option = _OPTIONS[name]
            if option.field:
                keywords[option.field] = option.parse(text, f"{CLIENT}{option.name}")
        authentication = _authentication(given.get("authpluginclassname"), given.get("authparams"))
        if authentication is not None:
            keywords["authentication"] = authentication
        return keywords

    @property
    def operation_timeout_s(self) -> float:
        found: float = self.keywords().get("operation_timeout_seconds", _OPERATION_TIMEOUT_S)
        return found

    def open(self) -> Client:
        if self.factory is None:
            try:
                return Client(self.service_url, **self.keywords())
            except ConfigurationError as error:
                raise in_options(error) from error
        make = load_function(self.factory, "clientFactory")
        try:
            client = make(self.service_url, **self.keywords())
        except EncoreError:
            raise
        except Exception as error:
            raise ConfigurationError(
                f"clientFactory {self.factory} was called with the service URL and the keywords of "
                f"Client, and raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(client, Client):
            raise ConfigurationError(
                f"clientFactory {self.factory} must return a pulsar_encore.Client, it returned "
                f"{type(client).__name__}"
            )
        return client


def connection_of(values: Values) -> ConnectionOptions:
    if "service.url" not in values:
        # With Spark 4.3.0, the OPTIONS of CREATE TABLE reach the schema and not the reader.
        table = (
            ""
            if values
            else ". Spark hands a table's OPTIONS to no reader: use CREATE TEMPORARY VIEW name "
            "USING pulsar OPTIONS (...), or SELECT ... FROM table WITH (...)"
        )
        raise ConfigurationError(f"the option service.url is missing: pulsar://host:6650{table}")
    return ConnectionOptions(
        **values.fields("connection"), settings=tuple(sorted(values.client.items()))
    )


def in_options(error: ConfigurationError, url: str = "service.url") -> ConfigurationError:
    """Return an error of `Client` with option names for keywords, and `url` for the URL."""
    text = re.sub(r"\bservice_url\b", url, str(error))
    for option in _OPTIONS.values():
        if option.field:
            text = re.sub(rf"\b{option.field}(?= must|:)", f"{CLIENT}{option.name}", text)
    return ConfigurationError(text)


def _token(params: str) -> AuthenticationToken:
    if not params.strip():
        raise ConfigurationError(
            "pulsar.client.authParams of a token must be token:..., or file:///path of one"
        )
    return AuthenticationToken(params)


def _authentication(plugin: str | None, params: str | None) -> Any:
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
    named = _parse_params(params)
    certificate, key = named.get("tlscertfile"), named.get("tlskeyfile")
    if not certificate or not key:
        raise ConfigurationError(
            "pulsar.client.authParams of TLS must be tlsCertFile:/path,tlsKeyFile:/path"
        )
    return AuthenticationTLS(certificate, key)


def _parse_params(params: str) -> dict[str, str]:
    """Parse ``name:value,name:value`` or a JSON object. Names become lower-case."""
    if params.lstrip().startswith("{"):
        try:
            return {name.lower(): str(value) for name, value in json.loads(params).items()}
        except ValueError:
            return {}
    pairs = (each.partition(":") for each in params.split(","))
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _basic(params: str) -> AuthenticationBasic:
    if params.lstrip().startswith("{"):
        named = _parse_params(params)
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
