"""The receiving thread of a stock consumer, and the thread that watches connections.

The C++ client's receive cannot be cancelled without losing a message. Only the pump's thread
therefore receives, into a bounded buffer: single messages while traffic is thin, batches while it
is thick.

A pump must not hang or abort the process, so the `Watcher` ends it when its loop is closed or the
main thread has ended.
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

_POLL_S: Final = 0.050  # time between two polls of a connection
# While a lost connection may lose acks. A reconnect takes 90 ms or more.
_WATCHFUL_POLL_S: Final = 0.010
_WATCHFUL_S: Final = 1.0
# A new connection counts after this time. The C++ client reports it shortly before it discards the
# messages queued from the old one.
_STEADY_S: Final = 0.050
_WITHDRAW_S: Final = 5.0  # longest wait for a close of the C++ client
_THIN_BATCH: Final = 16  # a smaller batch means thin traffic
_QUICK_GAP_S: Final = 0.001  # single messages closer than this mean thick traffic
_QUICK_COUNT: Final = 4


class Steadiness:
    """Decides when a new connection counts as up.

    It counts after polls have seen it for `_STEADY_S` without a gap.
    """

    __slots__ = ("_since",)

    def __init__(self) -> None:
        # Time of the first of the uninterrupted polls that saw the connection.
        self._since: float | None = float("-inf")

    def record_poll(self, connected: bool, now: float) -> bool:
        """Note a poll at `now`, in s. Return True if the connection counts."""
        if not connected:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= _STEADY_S

    @property
    def was_seen(self) -> bool:
        """True if the last poll saw the connection."""
        return self._since is not None


class Watcher:
    """The thread that polls the connections of all pumps."""

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
        """Forget the pumps, in a forked child."""
        for pump in self._pumps:
            pump.is_of_parent = True
        self._pumps.clear()
        self._begin()  # a thread of the parent may hold the old lock

    def remove(self, pump: Pump) -> None:
        with self._lock:
            self._pumps.discard(pump)

    def hurry(self) -> None:
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
        """Poll the due pumps. True if one is watchful, None if none is left."""
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
                pump.end_and_close()
            elif is_watched or all_pumps:
                pump.poll()
        return watchful


_watcher = Watcher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watcher.forget)
_unanswered: list[Any] = []  # C++ consumers that must not be destroyed


class _Inbox:
    """The callback of receives. It refers to neither the pump nor the C++ consumer."""

    __slots__ = ("arrived", "epoch", "losses", "wake")

    def __init__(self, wake: threading.Event) -> None:
        self.arrived: deque[tuple[int, int, Any, Any]] = deque()  # epoch, losses, result, message
        self.epoch = 0  # seeks so far
        self.losses = 0  # losses of the connection so far
        self.wake = wake

    def __call__(self, result: Any, message: Any) -> None:
        try:
            self.arrived.append((self.epoch, self.losses, result, message))
            self.wake.set()
        except BaseException:  # a thread of the C++ client must not raise
            return


class Pump:
    """Receives from a C++ consumer until stopped.

    Args:
        cpp_consumer: The C++ consumer, with a batch receive policy of a few ms.
        capacity: Messages that the buffer may hold.
        deliver: Called on this thread with messages.
        arrived: Called on the loop with the result of `deliver`.
        connection: Called on the loop when the connection comes (True) or goes (False).
        ended: Called on the loop at the end, with the thread's error or None.
        stops_while_disconnected: Receive nothing while disconnected: the C++ client discards its
            queue at the reconnect, and the broker resends it.
    """

    def __init__(
        self,
        cpp_consumer: _pulsar.Consumer,
        mailbox: Mailbox,
        capacity: int,
        deliver: Callable[[list[Any]], Any],
        arrived: Callable[[Any], None],
        connection: Callable[[bool], None],
        ended: Callable[[Exception | None], None],
        *,
        stops_while_disconnected: bool,
    ) -> None:
        self._cpp_consumer = cpp_consumer
        self._mailbox = mailbox
        self._capacity = capacity
        self._deliver = deliver
        self._arrived = arrived
        self._connection = connection
        self._ended = ended
        self._stops_while_disconnected = stops_while_disconnected
        # Two counters with one writer each, so that no lock is needed.
        self._posted = 0  # this thread
        self._taken = 0  # the loop
        self._commands: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        self._inbox = _Inbox(self._wake)
        self._receiving = False  # a receive is pending and will call the inbox
        self._stopping = False
        self._forsaken = False
        self._paused = False
        self._full = False
        self._connected = True
        self._reported_up = True
        # Held during the C++ consumer's `seek_async`, `is_connected` and
        # `redeliver_unacknowledged_messages`. All three take a lock for each topic of the consumer.
        # The seek needs the GIL and the other two keep it, so they could deadlock.
        self.cpp_lock: threading.Lock = threading.Lock()
        self._steadiness = Steadiness()
        self._poll_failed = False
        self._changes: deque[bool] = deque()  # of the connection, not reported yet
        self._losses = 0  # losses that were reported
        self.watchful_until: float = 0.0
        self._is_thick = False
        self._quick = 0
        self._thread = threading.Thread(target=self._run, name="pulsar-encore-pump")
        # True in a forked child: the pump belongs to the parent process.
        self.is_of_parent: bool = False

    def start(self) -> None:
        self._thread.start()
        _watcher.add(self)

    # From the loop

    def note_consumed(self, messages: int) -> None:
        """Note that `messages` left the buffer. Wake the thread when half of it is free."""
        self._taken += messages
        if self._full and self._posted - self._taken <= self._capacity // 2:
            self._wake.set()

    def watch(self) -> None:
        now = time.monotonic()
        if now >= self.watchful_until:
            _watcher.hurry()
        self.watchful_until = now + _WATCHFUL_S

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._wake.set()

    def call(self, command: Callable[[], object]) -> None:
        self._commands.append(command)
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def end_and_close(self) -> None:
        """End the thread and close the C++ consumer, which has no owner."""
        if self._stopping or self.is_of_parent:
            return
        self._forsaken = True
        self.stop()
        if self._thread.ident is None:  # it was never started
            self._cpp_consumer.close_async(ignore)

    def note_seek(self) -> None:
        """Discard the message of the pending receive.

        Called on a thread of the C++ client.
        """
        self._inbox.epoch += 1

    # On the watcher's thread

    def poll(self) -> None:
        """Note a change of the connection, or that the loop is closed. Never raises."""
        try:
            self._poll_connection()
        except Exception:
            if not self._poll_failed:  # once: every poll may fail
                logger.exception("could not check whether a consumer is connected")
            self._poll_failed = True

    def _poll_connection(self) -> None:
        if self._mailbox.loop.is_closed():
            self.end_and_close()
            return
        with self.cpp_lock:
            up = self._cpp_consumer.is_connected()
        connected = self._steadiness.record_poll(up, time.monotonic())
        if connected != self._connected:
            self._connected = connected
            self._inbox.losses += not connected
            self._changes.append(connected)
            self._wake.set()
        elif not connected and self._steadiness.was_seen:
            self.watch()

    # Commands, on the thread

    def request_all(self) -> None:
        with self.cpp_lock:
            self._cpp_consumer.redeliver_unacknowledged_messages()

    def sleep_reporting(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
            self._report()

    def drain(self, most: int) -> list[Any]:
        """Take up to `most` messages out of the C++ client's queue.

        For each of them the broker may send another.
        """
        drained = self._take_received()
        while most > 0:
            messages = self._cpp_consumer.batch_receive()
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
                self.end_and_close()
        except pulsar.AlreadyClosed:
            pass
        except Exception as unexpected:
            error = unexpected
        _watcher.remove(self)
        self._wait_for_receive()
        self._mailbox.post(self._ended, error)

    def _wait_for_receive(self) -> None:
        """Wait for the pending receive, which the close of the C++ consumer answers.

        Destroying a C++ consumer with a pending receive ends the process. Two closes may leave
        the subscription at the broker, so only a forsaken consumer is closed here.
        """
        if self._forsaken:
            self._cpp_consumer.close_async(ignore)
        if not self._receiving:
            return
        deadline = time.monotonic() + _WITHDRAW_S
        while not self._inbox.arrived:
            self._wake.clear()
            left = deadline - time.monotonic()
            if not self._inbox.arrived and (left <= 0 or not self._wake.wait(left)):
                _unanswered.append(self._cpp_consumer)
                return

    def _step(self) -> bool:
        """Do one step; False if the loop is closed."""
        while self._commands:
            self._commands.popleft()()
        if not self._report():
            return False
        self._full = self._posted - self._taken >= self._capacity
        if self._is_held_back():
            if self._has_ended():
                raise pulsar.AlreadyClosed("closed by the C++ client")
            self._sleep()
            return True
        return self._post(self._receive())

    def _report(self) -> bool:
        """Report changes of the connection, after delivering the messages from before a loss.

        The loss count tells messages from before it from those of the next connection.
        """
        while self._changes:
            up = self._changes.popleft()
            if not up:
                self._losses += 1
                arrived = self._inbox.arrived
                old = arrived and arrived[0][1] < self._losses
                if old and self._paused:
                    # A pending seek outdates these messages.
                    if self._stops_while_disconnected:
                        self._take_received()
                elif old and not self._post(self._take_received()):
                    return False
            self._reported_up = up
            if not self._mailbox.post(self._connection, self._reported_up):
                return False
        return True

    def _is_held_back(self) -> bool:
        if self._paused or (self._stops_while_disconnected and not self._reported_up):
            return True
        return self._full and self._posted - self._taken >= self._capacity

    def _has_ended(self) -> bool:
        """True if the C++ client closed the disconnected consumer."""
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
            messages = self._cpp_consumer.batch_receive()
            if len(messages) < _THIN_BATCH:
                self._is_thick, self._quick = False, 0
            return messages
        began = time.monotonic()
        if not self._receiving:
            self._receiving = True
            self._cpp_consumer.receive_async(self._inbox)
        if not self._inbox.arrived:
            self._sleep()
        messages = self._take_received()
        if messages:
            self._quick = self._quick + 1 if time.monotonic() - began < _QUICK_GAP_S else 0
            self._is_thick = self._quick >= _QUICK_COUNT
        return messages

    def _take_received(self) -> list[Any]:
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
        """Sleep until there is work. Every source of work sets `_wake` after adding it."""
        self._wake.clear()
        if not (
            self._stopping
            or self._commands
            or self._changes
            or self._has_ended()
            or (not self._is_held_back() and (self._inbox.arrived or not self._receiving))
        ):
            self._wake.wait()
