"""Credentials of a client, sent with each connection and whenever a broker asks for them.

`athenz` and `oauth2` are not imported here, because OAuth2 needs TLS, certificates and JSON.
"""

from .authentication import Authentication, of
from .basic import AuthenticationBasic
from .client_certificate import AuthenticationTLS
from .token import AuthenticationToken

__all__ = [
    "Authentication",
    "AuthenticationBasic",
    "AuthenticationTLS",
    "AuthenticationToken",
    "of",
]
