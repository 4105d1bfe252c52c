"""The errors of answers of the web service other than 200, with what to do about a refusal."""

from __future__ import annotations

import json
import re
from typing import Final

from ....errors import AuthenticationError, AuthorizationError, PulsarException, exception_of_result

_MAX_REASON_CHARS: Final = 300
_ERRORS: Final = {
    400: "InvalidTopicName",
    404: "TopicNotFound",
    405: "NotAllowedError",
    409: "NotAllowedError",
    412: "InvalidTopicName",
    429: "TooManyRequests",
    503: "ServiceNotReady",
}
# Pulsar 4.2.4, with status 401 for a topic and 403 for a namespace.
_OPERATION: Final = re.compile(
    r"operation \[(\w+)\] on (?:topic|namespace) \[(?:[\w-]+://)?([^/\]]+/[^/\]]+)"
)
#: Operations that a broker allows with an action. Others are for the tenant's administrators.
_ACTIONS: Final = {
    "CONSUME": "consume",
    "GET_METADATA": "consume",
    "GET_STATS": "consume",
    "GET_TOPICS": "consume",
    "LOOKUP": "consume",
    "PRODUCE": "produce",
}


def refusal(status: int, body: bytes, purpose: str, method: str) -> PulsarException:
    """Return the error of an answer.

    Args:
        purpose: What was asked for, such as "stats of persistent://public/default/orders".
        method: The client's authentication method, such as "token", or "none".
    """
    reason = _reason(body)
    text = f"{purpose}: HTTP {status}: {reason}"
    if status not in (401, 403):
        return exception_of_result(_ERRORS.get(status, "LookupError"), text)
    if operation := _OPERATION.search(reason):
        name, namespace = operation.groups()
        action = _ACTIONS.get(name)
        remedy = (
            "use the login of an administrator of the tenant"
            if action is None
            else f"grant it `{action}`, as by `pulsar-admin namespaces grant-permission "
            f"{namespace} --role ROLE --actions {action}`"
        )
        return AuthorizationError(f"{text}. The role of this client lacks a permission: {remedy}")
    if status == 403:
        return AuthorizationError(text)
    if method == "none":
        return AuthenticationError(
            f"{text}. This client has no login: give it one, such as a token by `authentication=` "
            "or `--token-file`"
        )
    return AuthenticationError(
        f"{text}. The broker refuses the login of this client (method {method!r}): check that the "
        "credentials are of this cluster and have not expired"
    )


def _reason(body: bytes) -> str:
    """Return the broker's `reason`, its web server's `message`, or the beginning of the body."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    given = None
    if isinstance(answer, dict):
        given = answer.get("reason") or answer.get("message")
    return f"{given or body[:_MAX_REASON_CHARS].decode(errors='replace')}"[:_MAX_REASON_CHARS]
