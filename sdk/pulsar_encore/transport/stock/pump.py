"""The one thread of a stock consumer: takes messages out of the native queue, loses none.

Owns `Pump`. The native receive cannot be cancelled without losing a message, so nobody but this
thread receives, into a bounded buffer. It takes single messages while traffic is thin (no waiting)
and batches while it is thick (one native call and one wake-up of the loop for hundreds). It ends by
itself when the loop is closed or the main thread is over, so it can neither hang the process nor
abort it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import _pulsar
import pulsar

from .results import Mailbox

_IDLE_MS: Final = 50  # longest native wait: how soon a stop or a command is noticed
# While acks may be lost with a connection it is looked at this often: a reconnect takes the native
# client 90 ms or more, and none must go unseen.
_WATCHFUL_MS: Final = 10
_WATCHFUL_S: Final = 1.0
# A connection has to stay for so long to count: the library says it is there a moment before it
# throws away what it had queued from the one before.
_STEADY_S: Final = 0.050
_THIN: Final = 16  # a batch smaller than this means traffic is thin
_QUICK_S: Final = 0.001  # singles closer than this mean it is thick
_QUICK_COUNT: Final = 4


class Pump:
    """Receives from `native` until stopped.

    Args:
        native: The native consumer, with a batch receive policy of a few ms.
        mailbox: Where to hand over, on the loop.
        room: Messages the buffer may hold.
        deliver: Called on this thread with a list of messages; returns what is posted to `arrived`.
        arrived: Called on the loop with what `deliver` returned.
        connection: Called on the loop with True or False when the connection comes or goes.
        ended: Called on the loop once the thread is over, with the error that ended it or None.
        rests: Take nothing while the connection is lost. What is queued comes again then, and the
            library throws it away at the reconnect: so nothing old mixes with what is new.
    """

    def __init__(
        self,
        native: _pulsar.Consumer,
        mailbox: Mailbox,
        room: int,
        deliver: Callable[[list[Any]], Any],
        arrived: Callable[[Any], None],
        connection: Callable[[bool], None],
        ended: Callable[[Exception | None], None],
        *,
        rests: bool,
    ) -> None:
        self._native = native
        self._mailbox = mailbox
        self._room = room
        self._deliver = deliver
        self._arrived = arrived
        self._connection = connection
        self._ended = ended
        self._rests = rests
        # Two counters with one writer each, so that no lock is needed.
        self._posted = 0  # this thread
        self._taken = 0  # the loop
        self._commands: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._paused = False
        self._connected = True
        self._polled = 0.0
        self._up_since = -_STEADY_S
        self._watchful_until = 0.0
        self._thick = False
        self._quick = 0
        self._thread = threading.Thread(target=self._run, name="pulsar-encore-pump")

    def start(self) -> None:
        self._thread.start()

    # From the loop

    def taken(self, messages: int) -> None:
        """That many left the buffer."""
        self._taken += messages
        self._wake.set()

    def watch(self) -> None:
        """Acks were handed over: a lost connection may take them along, so look closely."""
        self._watchful_until = time.monotonic() + _WATCHFUL_S

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._wake.set()

    def call(self, command: Callable[[], object]) -> None:
        """Run `command` on the thread, between two receives."""
        self._commands.append(command)
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    # On the thread

    def rest(self, seconds: float) -> None:
        """Take nothing for so long. For a command."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _IDLE_MS / 1000))
            self._watch_connection()

    def drain(self, most: int) -> None:
        """Throw away what the native queue holds, up to `most`. For a command; it comes again.

        Bounded, because taking messages out lets the broker send more.
        """
        while most > 0:
            messages = self._native.batch_receive()
            if not messages:
                return
            most -= len(messages)

    def _run(self) -> None:
        error: Exception | None = None
        try:
            while not self._stopping and threading.main_thread().is_alive():
                if not self._step():
                    break
        except pulsar.AlreadyClosed:
            pass
        except Exception as unexpected:
            error = unexpected
        self._mailbox.post(self._ended, error)

    def _step(self) -> bool:
        """One turn; False when there is nobody left to hand over to."""
        while self._commands:
            self._commands.popleft()()
        if not self._watch_connection():
            return False
        if self._holds_back():
            self._wake.clear()
            if self._holds_back():
                self._wake.wait(self._idle_ms() / 1000)
            return True
        messages = self._receive()
        if not messages:
            return True
        self._posted += len(messages)
        return self._mailbox.post(self._arrived, self._deliver(messages))

    def _holds_back(self) -> bool:
        full = self._posted - self._taken >= self._room
        return full or self._paused or (self._rests and not self._connected)

    def _receive(self) -> list[Any]:
        if self._thick:
            messages: list[Any] = self._native.batch_receive()
            if len(messages) < _THIN:
                self._thick, self._quick = False, 0
            return messages
        began = time.monotonic()
        try:
            message = self._native.receive(self._idle_ms())
        except pulsar.Timeout:
            self._quick = 0
            return []
        self._quick = self._quick + 1 if time.monotonic() - began < _QUICK_S else 0
        self._thick = self._quick >= _QUICK_COUNT
        return [message]

    def _idle_ms(self) -> int:
        return _WATCHFUL_MS if time.monotonic() < self._watchful_until else _IDLE_MS

    def _watch_connection(self) -> bool:
        now = time.monotonic()
        if now - self._polled < _WATCHFUL_MS / 1000:
            return True
        self._polled = now
        connected = self._native.is_connected()
        if not connected:
            self._up_since = now
        elif now - self._up_since < _STEADY_S:
            connected = False
        if connected == self._connected:
            return not self._mailbox.loop.is_closed()
        self._connected = connected
        return self._mailbox.post(self._connection, connected)
