"""The one thread of a stock consumer: takes messages out of the native queue, loses none.

Owns `Pump`. The native receive cannot be cancelled without losing a message, so nobody but this
thread receives, into a bounded buffer. It takes single messages while traffic is thin (no waiting)
and batches while it is thick (one native call and one wake-up of the loop for hundreds). While
nothing comes it sleeps, and a native callback wakes it: a consumer that is idle costs nothing. One
thread for all of them, `Watcher`, looks after the connections, and ends each pump when its loop is
closed or the main thread is over, so it can neither hang the process nor abort it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import _pulsar
import pulsar

from ...eventloop.mailbox import Mailbox
from .cpp_calls import ignore
from .result_errors import failure

logger: logging.Logger = logging.getLogger(__name__)

_POLL_S: Final = 0.050  # how often a connection is looked at
# While acks may be lost with it, this often: a reconnect takes the native client 90 ms or more, and
# none must go unseen.
_WATCHFUL_POLL_S: Final = 0.010
_WATCHFUL_S: Final = 1.0
# A connection has to stay for so long to count: the library says it is there a moment before it
# throws away what it had queued from the one before.
_STEADY_S: Final = 0.050
_WITHDRAW_S: Final = 5.0  # longest wait for a native consumer to be closed
_THIN_BATCH: Final = 16  # a batch smaller than this means traffic is thin
_QUICK_GAP_S: Final = 0.001  # singles closer than this mean it is thick
_QUICK_COUNT: Final = 4


class Steadiness:
    """Whether a connection that was looked at now and then counts as one: it has been seen twice,
    `_STEADY_S` apart, and never gone between. Pure."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = float("-inf")  # the first look that saw it, if the last did

    def counts(self, connected: bool, now: float) -> bool:
        """A look at `now`, in seconds, saw it `connected` or not."""
        if not connected:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= _STEADY_S

    @property
    def hesitates(self) -> bool:
        """Whether it is there and does not count yet."""
        return self._since is not None


class Watcher:
    """The thread that sees connections come and go, for every pump of the process."""

    def __init__(self) -> None:
        self._pumps: set[Pump] = set()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def add(self, pump: Pump) -> None:
        with self._lock:
            self._pumps.add(pump)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pulsar-encore-watcher")
                self._thread.start()

    def forget(self) -> None:
        """In a forked child: the thread and the pumps' threads stayed in the parent."""
        for pump in self._pumps:
            pump.left_behind = True
        self._pumps.clear()
        self._begin()  # the lock may be one that a thread of the parent holds

    def remove(self, pump: Pump) -> None:
        with self._lock:
            self._pumps.discard(pump)

    def hurry(self) -> None:
        """A pump has become watchful: do not sleep until the next ordinary look."""
        self._wake.set()

    def _run(self) -> None:
        last_poll = 0.0
        while True:
            now = time.monotonic()
            all_pumps = now - last_poll >= _POLL_S
            last_poll = now if all_pumps else last_poll
            self._wake.clear()
            watchful = self._poll(now, all_pumps)
            if watchful is None:
                return
            self._wake.wait(_WATCHFUL_POLL_S if watchful else _POLL_S)

    def _poll(self, now: float, all_pumps: bool) -> bool | None:
        """Whether some pump is watchful; None when there is none left, and the thread ends."""
        with self._lock:
            pumps = list(self._pumps)
            if not pumps:
                self._thread = None
                return None
        main_ended = not threading.main_thread().is_alive()
        watchful = False
        for pump in pumps:
            is_watched = now < pump.watchful_until
            watchful = watchful or is_watched
            if main_ended:
                pump.forsake()
            elif is_watched or all_pumps:
                pump.look()
        return watchful


_watcher = Watcher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watcher.forget)
_unanswered: list[Any] = []  # native consumers that must not be destroyed


class _Inbox:
    """What a native receive calls, on a native thread; keeps nothing of the pump's or native."""

    __slots__ = ("arrived", "epoch", "losses", "wake")

    def __init__(self, wake: threading.Event) -> None:
        self.arrived: deque[tuple[int, int, Any, Any]] = deque()  # epoch, losses, result, message
        self.epoch = 0  # seeks so far
        self.losses = 0  # times the connection was seen to be lost
        self.wake = wake

    def __call__(self, result: Any, message: Any) -> None:
        try:
            self.arrived.append((self.epoch, self.losses, result, message))
            self.wake.set()
        except BaseException:  # nothing may pass
            return


class Pump:
    """Receives from `native` until stopped.

    Args:
        native: The native consumer, with a batch receive policy of a few ms.
        mailbox: Where to hand over, on the loop.
        capacity: Messages the buffer may hold.
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
        capacity: int,
        deliver: Callable[[list[Any]], Any],
        arrived: Callable[[Any], None],
        connection: Callable[[bool], None],
        ended: Callable[[Exception | None], None],
        *,
        rests: bool,
    ) -> None:
        self._native = native
        self._mailbox = mailbox
        self._capacity = capacity
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
        self._inbox = _Inbox(self._wake)
        self._receiving = False  # a native receive is under way, and calls the inbox
        self._stopping = False
        self._forsaken = False
        self._paused = False
        self._full = False
        self._connected = True  # as last looked at
        self._reported_up = True  # as last told
        # Held where the native consumer is told to seek, and where it is asked, on any thread,
        # whether it is connected or for everything again: of several topics it takes a lock of its
        # own for each, wants the interpreter during the seek and keeps it during the others.
        self.asking: threading.Lock = threading.Lock()
        self._steadiness = Steadiness()
        self._poll_failed = False
        self._changes: deque[bool] = deque()  # of the connection, not yet told
        self._losses = 0  # of those that were told
        self.watchful_until: float = 0.0
        self._is_thick = False
        self._quick = 0
        self._thread = threading.Thread(target=self._run, name="pulsar-encore-pump")

        self.left_behind = False  # in the parent process, by a fork

    def start(self) -> None:
        self._thread.start()
        _watcher.add(self)

    # From the loop

    def taken(self, messages: int) -> None:
        """That many left the buffer.

        Half of it has to be free before the thread is woken: many messages at once cost it, and the
        loop that it takes the interpreter from, far less than many wake-ups.
        """
        self._taken += messages
        if self._full and self._posted - self._taken <= self._capacity // 2:
            self._wake.set()

    def watch(self) -> None:
        """Look closely for a while: acks were handed over, which a lost connection may take along,
        or a connection is back and has to stay."""
        now = time.monotonic()
        if now >= self.watchful_until:
            _watcher.hurry()
        self.watchful_until = now + _WATCHFUL_S

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._wake.set()

    def call(self, command: Callable[[], object]) -> None:
        """Run `command` on the thread, between two receives."""
        self._commands.append(command)
        self._wake.set()

    def stop(self) -> None:
        """End the thread; the native consumer is about to be closed, or its client."""
        self._stopping = True
        self._wake.set()

    def forsake(self) -> None:
        """End the thread, and close the native consumer: nobody is left to do so."""
        if self._stopping or self.left_behind:
            return
        self._forsaken = True
        self.stop()
        if self._thread.ident is None:  # it was never started
            self._native.close_async(ignore)

    def sought(self) -> None:
        """On a native thread, when a seek is done: a message that a receive under way took out of
        the native queue before is outdated with all the others."""
        self._inbox.epoch += 1

    # On the watcher's thread

    def look(self) -> None:
        """Note a change of the connection; stop when there is nobody left to hand over to.

        Never raises: the thread looks after every other consumer too.
        """
        try:
            self._poll()
        except Exception:
            if not self._poll_failed:  # once: it may fail at every look
                logger.exception("whether a consumer is connected could not be found out")
            self._poll_failed = True

    def _poll(self) -> None:
        if self._mailbox.loop.is_closed():
            self.forsake()
            return
        with self.asking:
            up = self._native.is_connected()
        connected = self._steadiness.counts(up, time.monotonic())
        if connected != self._connected:
            self._connected = connected
            self._inbox.losses += not connected
            self._changes.append(connected)
            self._wake.set()
        elif not connected and self._steadiness.hesitates:
            self.watch()

    # On the thread

    def ask_for_all(self) -> None:
        """Everything unacked comes again. For a command."""
        with self.asking:
            self._native.redeliver_unacknowledged_messages()

    def rest(self, seconds: float) -> None:
        """Take nothing for so long. For a command."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
            self._report()

    def drain(self, most: int) -> list[Any]:
        """Take out what the native queue holds, up to `most`. For a command; it comes again.

        Bounded, because taking messages out lets the broker send more.
        """
        drained = self._take_received()
        while most > 0:
            messages = self._native.batch_receive()
            if not messages:
                break
            most -= len(messages)
            drained += messages
        return drained + self._take_received()

    def _run(self) -> None:
        error: Exception | None = None
        try:
            while not self._stopping and self._step():
                pass
            if not self._stopping:  # the loop is closed
                self.forsake()
        except pulsar.AlreadyClosed:
            pass
        except Exception as unexpected:
            error = unexpected
        _watcher.remove(self)
        self._wait_for_receive()
        self._mailbox.post(self._ended, error)

    def _wait_for_receive(self) -> None:
        """Wait until a receive that is under way is answered, as it is when the native consumer is
        closed: to be destroyed with one ends the process. Two closes at once are no better, they
        may leave the subscription at the broker, so only what nobody else closes is closed here."""
        if self._forsaken:
            self._native.close_async(ignore)
        if not self._receiving:
            return
        deadline = time.monotonic() + _WITHDRAW_S
        while not self._inbox.arrived:
            self._wake.clear()
            left = deadline - time.monotonic()
            if not self._inbox.arrived and (left <= 0 or not self._wake.wait(left)):
                _unanswered.append(self._native)
                return

    def _step(self) -> bool:
        """One turn; False when there is nobody left to hand over to."""
        while self._commands:
            self._commands.popleft()()
        if not self._report():
            return False
        self._full = self._posted - self._taken >= self._capacity
        if self._is_held_back():
            if self._has_ended():
                raise pulsar.AlreadyClosed("closed by the library")
            self._sleep()
            return True
        return self._post(self._receive())

    def _report(self) -> bool:
        """Tell of the connection; what came before it was lost goes before the news.

        And nothing else does: when this thread is late, a message of the next connection is here.
        """
        while self._changes:
            up = self._changes.popleft()
            if not up:
                self._losses += 1
                arrived = self._inbox.arrived
                old = arrived and arrived[0][1] < self._losses
                if old and self._paused:
                    # A seek is under way: what it outdates is not handed out in the middle of it.
                    if self._rests:
                        self._take_received()
                elif old and not self._post(self._take_received()):
                    return False
            self._reported_up = up
            if not self._mailbox.post(self._connection, self._reported_up):
                return False
        return True

    def _is_held_back(self) -> bool:
        if self._paused or (self._rests and not self._reported_up):
            return True
        return self._full and self._posted - self._taken >= self._capacity

    def _has_ended(self) -> bool:
        """Whether the library closed the consumer while it was not connected.

        Nothing is taken then, so `_take_received` would never find out, and receives would hang.
        """
        if self._reported_up or not self._inbox.arrived:
            return False
        return bool(self._inbox.arrived[0][2] == _pulsar.Result.AlreadyClosed)

    def _post(self, messages: list[Any]) -> bool:
        if not messages:
            return True
        self._posted += len(messages)
        return self._mailbox.post(self._arrived, self._deliver(messages))

    def _receive(self) -> list[Any]:
        messages: list[Any]
        if self._is_thick:
            messages = self._native.batch_receive()
            if len(messages) < _THIN_BATCH:
                self._is_thick, self._quick = False, 0
            return messages
        began = time.monotonic()
        if not self._receiving:
            self._receiving = True
            self._native.receive_async(self._inbox)
        if not self._inbox.arrived:
            self._sleep()
        messages = self._take_received()
        if messages:
            self._quick = self._quick + 1 if time.monotonic() - began < _QUICK_GAP_S else 0
            self._is_thick = self._quick >= _QUICK_COUNT
        return messages

    def _take_received(self) -> list[Any]:
        """What the native receive brought: a message at most.

        Raises:
            AlreadyClosed: Nothing more will come.
        """
        if not self._inbox.arrived:
            return []
        epoch, _, result, message = self._inbox.arrived.popleft()
        self._receiving = False
        if result == _pulsar.Result.Ok:
            return [message] if epoch == self._inbox.epoch else []
        if result == _pulsar.Result.AlreadyClosed:
            raise pulsar.AlreadyClosed("closed")
        raise failure(result, "receive")

    def _sleep(self) -> None:
        """Until something is to be done; whoever gives that sets `_wake` after it."""
        self._wake.clear()
        if not (
            self._stopping
            or self._commands
            or self._changes
            or self._has_ended()
            or (not self._is_held_back() and (self._inbox.arrived or not self._receiving))
        ):
            self._wake.wait()
