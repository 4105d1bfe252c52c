"""States of one topic's consumer, and the table of legal transitions. Pure.

Where a row of `TRANSITIONS` maps a state to itself, the event may come in that state and changes
nothing: a connection may end, for example, while SUBSCRIBE is unanswered.

Three facts are not states, because they are true or false in several states:

- *Started*: the delivery listener asked for messages. The first attachment comes before that
  (`TopicConsumer.start`).
- *A seek is running*: `Seek.is_running`. One call to `seek` waits for an attachment, sends SEEK,
  and may retry after a loss. Acks are held back from its beginning to its end.
- *A rewind is pending*: `RewindCommand.is_pending`. A SEEK may be sent and answered meanwhile, and
  a rewind may be requested while a SEEK is unanswered.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class State(Enum):
    """The state of one topic's consumer at its broker, as far as the client knows."""

    DETACHED = "detached"
    """No broker holds it: before the first attachment, and after a loss."""
    ATTACHING = "attaching"
    """An attempt to attach is running; SUBSCRIBE is not answered yet."""
    RESENDING = "resending"
    """Attached. Unconfirmed acks are sent, before the first permit is given."""
    ATTACHED = "attached"
    """Attached; entries arrive as permits allow."""
    SEEKING = "seeking"
    """Attached; SEEK was sent and is not answered."""
    SEEKING_BROKEN = "seeking, with a broken entry"
    """As SEEKING. An entry arrived that cannot be read, and the seek may make it obsolete. The
    consumer attaches again once SEEK is answered."""
    CLOSED_BY_SEEK = "closed by a seek"
    """The broker closed the consumer, as it does before it answers SEEK."""
    LOST_IN_SEEK = "lost in a seek"
    """The connection ended while SEEK was unanswered. The running seek has not noticed yet."""
    CLOSING = "closing"
    """The application closes the consumer; the broker still holds it."""
    ENDED = "ended"
    """Closed on this side. Final."""


HELD: Final = frozenset(
    (State.RESENDING, State.ATTACHED, State.SEEKING, State.SEEKING_BROKEN, State.CLOSING)
)
"""States in which a broker holds the consumer."""


class Step(Enum):
    """Events that change the state."""

    BEGIN_ATTACH = "begin to attach"
    ATTACH_FAILED = "the attempt to attach failed"
    ATTACH = "SUBSCRIBE was answered"
    RESUME = "unconfirmed acks were sent again"
    SEND_SEEK = "SEEK was sent"
    SEEK_DONE = "SEEK was answered"
    SEEK_FAILED = "the broker refused SEEK, the answer was lost, or the call was cancelled"
    LOSE = "the connection ended"
    CLOSED_BY_BROKER = "the broker sent CLOSE_CONSUMER"
    REATTACH = "the client wants to leave the broker and attach again"
    END = "the application closes the consumer"
    FINISH = "the broker does not hold the closed consumer any more"


_S = State

_AFTER_SEEK: Final = {
    _S.SEEKING: _S.ATTACHED,
    _S.SEEKING_BROKEN: _S.ATTACHED,
    _S.CLOSED_BY_SEEK: _S.DETACHED,
    _S.LOST_IN_SEEK: _S.DETACHED,
    _S.CLOSING: _S.CLOSING,
    _S.ENDED: _S.ENDED,
}

_AFTER_LOSS: Final = {
    _S.DETACHED: _S.DETACHED,
    _S.ATTACHING: _S.ATTACHING,  # the request for SUBSCRIBE fails and ends the attempt
    _S.RESENDING: _S.DETACHED,
    _S.ATTACHED: _S.DETACHED,
    _S.SEEKING: _S.LOST_IN_SEEK,
    _S.SEEKING_BROKEN: _S.LOST_IN_SEEK,
    _S.CLOSED_BY_SEEK: _S.CLOSED_BY_SEEK,
    _S.LOST_IN_SEEK: _S.LOST_IN_SEEK,
    _S.CLOSING: _S.ENDED,
    _S.ENDED: _S.ENDED,
}

TRANSITIONS: Final[Mapping[Step, Mapping[State, State]]] = {
    Step.BEGIN_ATTACH: {_S.DETACHED: _S.ATTACHING},
    # An attempt that `close` cancels fails as well.
    Step.ATTACH_FAILED: {_S.ATTACHING: _S.DETACHED, _S.ENDED: _S.ENDED},
    Step.ATTACH: {_S.ATTACHING: _S.RESENDING},
    # Writing acks may reveal that the connection has ended. The application may shut its client
    # down when it learns that the consumer is connected.
    Step.RESUME: {
        _S.RESENDING: _S.ATTACHED,
        _S.DETACHED: _S.DETACHED,
        _S.ENDED: _S.ENDED,
    },
    Step.SEND_SEEK: {_S.ATTACHED: _S.SEEKING},
    # The answer may be read together with the end of the connection. The task that waits for the
    # answer runs later, and finds LOST_IN_SEEK.
    Step.SEEK_DONE: _AFTER_SEEK,
    Step.SEEK_FAILED: _AFTER_SEEK,
    Step.LOSE: _AFTER_LOSS,
    Step.CLOSED_BY_BROKER: _AFTER_LOSS
    | {_S.SEEKING: _S.CLOSED_BY_SEEK, _S.SEEKING_BROKEN: _S.CLOSED_BY_SEEK},
    # Where no broker holds the consumer, the next attachment is a new one anyway.
    Step.REATTACH: _AFTER_LOSS
    | {
        _S.SEEKING: _S.SEEKING_BROKEN,
        _S.SEEKING_BROKEN: _S.SEEKING_BROKEN,
        _S.CLOSING: _S.CLOSING,
    },
    Step.END: {state: _S.CLOSING if state in HELD else _S.ENDED for state in State},
    Step.FINISH: {_S.CLOSING: _S.ENDED, _S.ENDED: _S.ENDED},
}
"""The state after each step. A step is illegal in a state that its row does not name."""


class IllegalTransitionError(RuntimeError):
    """A step is illegal in the current state: a fault in this package."""


class StateMachine:
    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: State = State.DETACHED

    def step(self, step: Step) -> State:
        """Make a step, and return the state before it."""
        before = self.state
        after = TRANSITIONS[step].get(before)
        if after is None:
            raise IllegalTransitionError(
                f"{step.value!r} cannot happen to a consumer that is {before.value!r}"
            )
        self.state = after
        return before
