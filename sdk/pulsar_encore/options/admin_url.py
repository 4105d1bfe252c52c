"""The address of a web service (admin API)."""

from __future__ import annotations

from ..errors import ConfigurationError


def check_admin_url(url: object, name: str = "admin_url") -> str:
    """Return the URL of a web service without a slash at its end.

    Raises:
        ConfigurationError: if it is not a URL of http or https.
    """
    text = url.strip() if isinstance(url, str) else ""
    scheme, mark, host = text.partition("://")
    if scheme not in ("http", "https") or not mark or not host.strip("/"):
        raise ConfigurationError(
            f"{name} must be like http://host:8080 or https://host:8443, got {url!r}"
        )
    return text.rstrip("/")
