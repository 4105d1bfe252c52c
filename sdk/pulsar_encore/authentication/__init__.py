"""Who a client is: what it proves that by, at each connection and whenever a broker asks again."""

from .athenz import AuthenticationAthenz
from .authentication import Authentication, of
from .basic import AuthenticationBasic
from .client_certificate import AuthenticationTLS
from .oauth2 import AuthenticationOauth2
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
