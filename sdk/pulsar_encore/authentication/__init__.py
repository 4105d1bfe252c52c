"""Who a client is: what it proves that by, at each connection and whenever a broker asks again."""

from .athenz import AuthenticationAthenz
from .base import Authentication, of
from .basic import AuthenticationBasic
from .oauth2 import AuthenticationOauth2
from .tls import AuthenticationTLS
from .token import AuthenticationToken

__all__ = [
    "Authentication",
    "AuthenticationAthenz",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "of",
]
