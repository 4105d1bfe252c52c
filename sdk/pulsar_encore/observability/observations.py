"""The events that an `Observer` receives about messages, letters and workers.

They name consumers and workers by text, so that parts of the package below those can make them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from ..message import Message
    from ..values.message_id import MessageId

HandlerResult: TypeAlias = Literal["success", "failure", "lost", "drained"]
"""How a handler call ended.

"lost": another consumer has the message now. "drained": the drain ended the call, and no attempt
was counted.
"""

Settlement: TypeAlias = Literal[
    "ack", "nack", "wait", "retry_letter", "dead_letter", "discard", "handler", "none"
]
"""What follows a handler call.

"wait": the message waits in the worker for its next attempt.
"discard": acked without success (`dead_letters=False`). "handler": the handler has settled or
detached the message. "none": the message is given back, or another consumer has it.
"""


@dataclass(eq=False, slots=True)
class Sending:
    """A message that a producer sends.

    Attributes:
        topic: Full name of the producer's topic.
        properties: Properties of the message. `Observer.sending` may add some.
        payload_size: Size of the encoded payload in bytes; 0 for a tombstone.
        partition_key: The key, or None.
        message_id: Id of the stored message; None before `Observer.sent`, and after an error.
        state: Free for each observer's own use, by observer.
    """

    topic: str
    properties: dict[str, str]
    payload_size: int
    partition_key: str | bytes | None = None
    message_id: MessageId | None = None
    state: dict[object, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class HandlerCall:
    """One call of a worker's handler: an attempt at one message, or at the list of a `BatchWorker`.

    Attributes:
        worker: Name of the worker.
        topic: Full name of the topic or partition; of the first message of a list.
        subscription: Name of the subscription.
        messages: The messages, one or several.
        state: Free for each observer's own use, by observer.
    """

    worker: str
    topic: str
    subscription: str
    messages: tuple[Message, ...]
    state: dict[object, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerEnd:
    """How a handler call ended.

    Attributes:
        result: "success", "failure", "lost" or "drained".
        settlement: What happens to the message, or to most messages of a list.
        duration: Seconds from the start of the call to its end.
        error: The error of a failure, or None.
        retry_delay: Seconds until the next attempt, or None.
    """

    result: HandlerResult
    settlement: Settlement
    duration: float
    error: BaseException | None = None
    retry_delay: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterWritten:
    """A letter was stored in a retry letter topic or a dead letter topic.

    Attributes:
        kind: "retry" or "dead".
        message: The original message.
        topic: Full name of the letter topic.
        properties: Properties of the letter.
        subscription: Name of the consumer's subscription.
    """

    kind: Literal["retry", "dead"]
    message: Message
    topic: str
    properties: Mapping[str, str]
    subscription: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakerChange:
    """The breaker of a worker opened or closed.

    Attributes:
        worker: Name of the worker.
        is_open: True if it opened.
        error: The last error of the dependency, or None.
    """

    worker: str
    is_open: bool
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowFilling:
    """A consumer holds 80 % of the unacked messages at which its broker stops delivering.

    Sent each time that the share rises to 80 %, after it was below 60 %.

    Attributes:
        topic: What the consumer reads, as `Consumer.topic` returns it.
        subscription: Name of the subscription.
        unacked: Number of unacked messages.
        size: Number of unacked messages at which the broker stops delivering.
    """

    topic: str
    subscription: str
    unacked: int
    size: int
