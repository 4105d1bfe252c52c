"""The parameters of OAuth2 client credentials, and the key file that they name.

The file is read for each token. Errors show none of its content.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from ..options.checks import readable_file
from .authentication import field

_PARAMETERS: Final = "AuthenticationOauth2's auth_params_string"
_PRIVATE_KEY: Final = "AuthenticationOauth2's private_key"
_DATA_PREFIX: Final = "data:"
_FILE_PREFIX: Final = "file:"
_INLINE_TYPE: Final = "application/json;base64,"


@dataclass(frozen=True, slots=True, repr=False)
class OAuth2Client:
    """The identity that requests a token."""

    client_id: str
    client_secret: str


@dataclass(frozen=True, slots=True, repr=False)
class Parameters:
    """The parameters of a token request. `path` is the key file; "" with an `inline_client`."""

    issuer_url: str
    audience: str | None
    scope: str | None
    path: str
    inline_client: OAuth2Client | None

    def client(self) -> OAuth2Client:
        """Return the identity. Reads the key file."""
        if self.inline_client is not None:
            return self.inline_client
        try:
            with open(self.path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise ConfigurationError(
                f"{_PRIVATE_KEY}: cannot read {self.path!r}: {error.strerror}"
            ) from error
        return _parse_client(content, f"{_PRIVATE_KEY}: {self.path!r}")


def read(text: str) -> Parameters:
    """Parse the JSON parameters of `AuthenticationOauth2`."""
    values = _parse_object(text, _PARAMETERS)
    issuer = field(values, "issuer_url", _PARAMETERS)
    if not is_web_address(issuer):
        raise ConfigurationError(
            f"{_PARAMETERS}: issuer_url must be https://host with an optional path, without a user"
        )
    optional: dict[str, str | None] = {}
    for name in ("audience", "scope"):
        optional[name] = field(values, name, _PARAMETERS) if values.get(name) else None
    path, inline_client = _key_source(values)
    return Parameters(issuer, optional["audience"], optional["scope"], path, inline_client)


def is_web_address(text: str) -> bool:
    """Return True for an http or https address with a host and without a user."""
    try:
        url = urlsplit(text)
    except ValueError:
        return False
    return text.startswith(("http://", "https://")) and bool(url.hostname) and "@" not in url.netloc


def _key_source(values: Mapping[str, Any]) -> tuple[str, OAuth2Client | None]:
    if "private_key" not in values:
        return "", _client_from(values, f"{_PARAMETERS}, without private_key,")
    key = field(values, "private_key", _PARAMETERS)
    if not key.startswith(_DATA_PREFIX):
        path = key.removeprefix(_FILE_PREFIX)
        path = f"/{path.lstrip('/')}" if path.startswith("//") else path
        readable_file(path, _PRIVATE_KEY)
        return path, None
    inline = key.removeprefix(_DATA_PREFIX)
    if not inline.startswith(_INLINE_TYPE):
        raise ConfigurationError(
            f"{_PRIVATE_KEY} must be a path, file:///path or data:{_INLINE_TYPE}..."
        )
    try:
        content = base64.b64decode(inline.removeprefix(_INLINE_TYPE), validate=True)
    except binascii.Error as error:
        raise ConfigurationError(
            f"{_PRIVATE_KEY}: the text after {_DATA_PREFIX}{_INLINE_TYPE} is not base64"
        ) from error
    return "", _parse_client(content, _PRIVATE_KEY)


def _parse_client(content: bytes, context: str) -> OAuth2Client:
    return _client_from(_parse_object(content, context), context)


def _client_from(values: Mapping[str, Any], context: str) -> OAuth2Client:
    return OAuth2Client(
        field(values, "client_id", context), field(values, "client_secret", context)
    )


def _parse_object(content: str | bytes, context: str) -> Mapping[str, Any]:
    try:
        values = json.loads(content)
    except (ValueError, TypeError):  # not chained: its text would show the secret
        values = None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{context} must be a JSON object")
    return values
