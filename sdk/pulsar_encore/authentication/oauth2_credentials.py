"""The parameters of OAuth2's client credentials, and the key file they name.

Owns `Parameters`. Pure but for reading that file, which is read again for each token, so that a
secret that was replaced is used. Nothing of what is in it is shown.
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

_WHERE: Final = "AuthenticationOauth2's auth_params_string"
_KEY: Final = "AuthenticationOauth2's private_key"
_DATA: Final = "data:"
_FILE: Final = "file:"
_INLINE: Final = "application/json;base64,"


@dataclass(frozen=True, slots=True, repr=False)
class OAuth2Client:
    """Who asks for a token."""

    client_id: str
    client_secret: str


@dataclass(frozen=True, slots=True, repr=False)
class Parameters:
    """What a token is asked for with.

    Attributes:
        issuer_url: Who is asked.
        audience: For whom the token is; None to leave that out.
        scope: What it shall allow; None to leave that out.
        path: The key file, "" where `given` is.
        given: Who asks, where the parameters said so themselves.
    """

    issuer_url: str
    audience: str | None
    scope: str | None
    path: str
    given: OAuth2Client | None

    def client(self) -> OAuth2Client:
        """Who asks, as the key file has it now.

        Raises:
            ConfigurationError: The file cannot be used.
        """
        if self.given is not None:
            return self.given
        try:
            with open(self.path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise ConfigurationError(
                f"{_KEY}: cannot read {self.path!r}: {error.strerror}"
            ) from error
        return _client(content, f"{_KEY}: {self.path!r}")


def read(text: str) -> Parameters:
    """Read stock's parameters, JSON.

    Raises:
        ConfigurationError: One is missing or wrong, or the key file cannot be read.
    """
    values = _json(text, _WHERE)
    issuer = field(values, "issuer_url", _WHERE)
    if not is_web_address(issuer):
        raise ConfigurationError(
            f"{_WHERE}: issuer_url must be https://host and perhaps a path, without a user"
        )
    optional: dict[str, str | None] = {}
    for name in ("audience", "scope"):
        optional[name] = field(values, name, _WHERE) if values.get(name) else None
    path, given = _source(values)
    return Parameters(issuer, optional["audience"], optional["scope"], path, given)


def is_web_address(text: str) -> bool:
    """Whether it is one of http or https, with a host and without a user."""
    try:
        url = urlsplit(text)
    except ValueError:
        return False
    return text.startswith(("http://", "https://")) and bool(url.hostname) and "@" not in url.netloc


def _source(values: Mapping[str, Any]) -> tuple[str, OAuth2Client | None]:
    """Path of the key file, or the key itself."""
    if "private_key" not in values:
        return "", _fields(values, f"{_WHERE}, without private_key,")
    key = field(values, "private_key", _WHERE)
    if not key.startswith(_DATA):
        path = key.removeprefix(_FILE)
        path = f"/{path.lstrip('/')}" if path.startswith("//") else path
        readable_file(path, _KEY)
        return path, None
    inline = key.removeprefix(_DATA)
    if not inline.startswith(_INLINE):
        raise ConfigurationError(f"{_KEY} must be a path, file:///path or data:{_INLINE}...")
    try:
        content = base64.b64decode(inline.removeprefix(_INLINE), validate=True)
    except binascii.Error as error:
        raise ConfigurationError(f"{_KEY}: what follows {_DATA}{_INLINE} is no base64") from error
    return "", _client(content, _KEY)


def _client(content: bytes, where: str) -> OAuth2Client:
    return _fields(_json(content, where), where)


def _fields(values: Mapping[str, Any], where: str) -> OAuth2Client:
    return OAuth2Client(field(values, "client_id", where), field(values, "client_secret", where))


def _json(content: str | bytes, where: str) -> Mapping[str, Any]:
    try:
        values = json.loads(content)
    except (ValueError, TypeError):  # not from it: its text would show what it could not read
        values = None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{where} must be a JSON object")
    return values
