"""Who a client is: what it proves that by, at each connection and whenever a broker asks again.

`athenz` and `oauth2` are imported by those who need them: OAuth2 brings TLS, certificates and JSON.
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
