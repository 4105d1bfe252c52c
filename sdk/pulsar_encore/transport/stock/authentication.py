"""Authentication whose files are looked at when it is made.

The library opens the key file of OAuth2 when it connects, and says no more than that the
authentication failed. Of TLS's it names the one that is missing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ...options.checks import readable_file

if TYPE_CHECKING:

    class _StockOauth2:
        def __init__(self, auth_params_string: str) -> None: ...

    class _StockTLS:
        def __init__(self, certificate_path: str, private_key_path: str) -> None: ...
else:
    from pulsar import AuthenticationOauth2 as _StockOauth2
    from pulsar import AuthenticationTLS as _StockTLS

_FILE: Final = "file://"
_INLINE: Final = "data:"


class AuthenticationOauth2(_StockOauth2):
    """Stock's `AuthenticationOauth2`; the file of `private_key` has to be there.

    Args:
        auth_params_string: JSON with `issuer_url`, `private_key` (a path or ``file://`` address),
            `audience` and the like.

    Raises:
        ConfigurationError: The file cannot be read.
    """

    def __init__(self, auth_params_string: str) -> None:
        super().__init__(auth_params_string)
        _check_key(auth_params_string)


class AuthenticationTLS(_StockTLS):
    """Stock's `AuthenticationTLS`; both files have to be there.

    Args:
        certificate_path: The client's certificate, PEM.
        private_key_path: Its key, PEM.

    Raises:
        ConfigurationError: A file cannot be read.
    """

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        super().__init__(certificate_path, private_key_path)
        readable_file(certificate_path, "AuthenticationTLS's certificate_path")
        readable_file(private_key_path, "AuthenticationTLS's private_key_path")


def _check_key(text: str) -> None:
    try:
        parameters: Any = json.loads(text)
    except ValueError:
        return  # the library's to judge
    key = parameters.get("private_key") if isinstance(parameters, dict) else None
    if isinstance(key, str) and not key.startswith(_INLINE):
        readable_file(key.removeprefix(_FILE), "AuthenticationOauth2's private_key")
