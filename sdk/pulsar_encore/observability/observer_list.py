"""The observers of one client, as one object with an attribute for each method of `Observer`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from ..errors import ConfigurationError
from .meters import CallMeter, SendMeter, SendMeters
from .observer import Observer

Hook: TypeAlias = Callable[..., None]

METHODS: Final = tuple(name for name in vars(Observer) if not name.startswith("_"))


class ObserverList:
    """Calls the observers of a client.

    Each attribute is None if no observer overrides the method of this name, so that an event
    without a listener is not even made. An observer that raises is logged once for each method.

    Attributes:
        call_meters: Make the meters of a worker's handler calls, from its name and subscription.
        send_meter: Makes the meter of a producer's sends from its topic; None if nothing measures.

    Raises:
        ConfigurationError: if `observers` is not a list of observers.
    """

    consumer_opened: Hook | None
    consumer_closed: Hook | None
    producer_opened: Hook | None
    producer_closed: Hook | None
    worker_started: Hook | None
    worker_ended: Hook | None
    sending: Hook | None
    sent: Hook | None
    handler_started: Hook | None
    handler_ended: Hook | None
    letter_written: Hook | None
    consumer_event: Hook | None
    producer_event: Hook | None
    window_filling: Hook | None
    breaker_changed: Hook | None
    drain_began: Hook | None
    drain_ended: Hook | None

    def __init__(
        self, observers: Any, logger_of: Callable[[str], logging.Logger] = logging.getLogger
    ) -> None:
        self._logger = logger_of(__name__)
        self._logged: set[tuple[int, str]] = set()
        checked = _checked(observers)
        self.call_meters: list[Callable[[str, str], CallMeter]] = _makers(checked, "call_meter")
        self.send_meter: Callable[[str], SendMeter] | None = _send_meter(checked)
        for name in METHODS:
            hooks = [hook for each in checked if (hook := _override(each, name)) is not None]
            setattr(self, name, self._caller(name, hooks) if hooks else None)

    def _caller(self, name: str, hooks: Sequence[Hook]) -> Hook:
        def call_each(*arguments: Any) -> None:
            for number, hook in enumerate(hooks):
                try:
                    hook(*arguments)
                except Exception:
                    self._log_once(number, name, hook)

        return call_each

    def log_meter(self, meter: object) -> None:
        """Log the current exception of a meter, once."""
        self._log_once(-1, type(meter).__name__, meter)

    def _log_once(self, number: int, name: str, hook: object) -> None:
        if (number, name) not in self._logged:
            self._logged.add((number, name))
            owner = type(getattr(hook, "__self__", hook)).__name__
            self._logger.exception(
                "the observer %s failed in %s; further errors of this method are not logged",
                owner,
                name,
            )


class EventRelay:
    """Passes the events of one consumer or producer to the observers and to its own listener.

    Attributes:
        subject: The consumer or producer. It is set before the first event.
    """

    def __init__(self, observe: Hook, listener: Callable[[Any], object] | None) -> None:
        self.subject: Any = None
        self._observe = observe
        self._listener = listener

    def __call__(self, event: Any) -> None:
        self._observe(self.subject, event)
        if self._listener is not None:
            self._listener(event)


def _checked(observers: Any) -> Sequence[object]:
    if isinstance(observers, str | bytes) or not isinstance(observers, Sequence):
        raise ConfigurationError(
            f"observers must be a list, got {type(observers).__name__}: write observers=[observer]"
        )
    for each in observers:
        if isinstance(each, type):
            raise ConfigurationError(
                f"observers has the class {each.__name__}: make an object, as in "
                f"observers=[{each.__name__}()]"
            )
        if not any(hasattr(each, name) for name in METHODS):
            raise ConfigurationError(
                f"observers has a {type(each).__name__} without any method of "
                "pulsar_encore.Observer: inherit from Observer, and override the methods that you "
                "need"
            )
        for name in METHODS:
            if inspect.iscoroutinefunction(getattr(each, name, None)):
                raise ConfigurationError(
                    f"{type(each).__name__}.{name} must be a plain method, not async: it is called "
                    "on the event loop and must return soon. Start a task for work that awaits"
                )
    return observers


def _override(observer: object, name: str) -> Hook | None:
    """Return a method of an observer, or None if it is missing or the one of `Observer`."""
    hook: Hook | None = getattr(observer, name, None)
    if hook is None or getattr(hook, "__func__", hook) is getattr(Observer, name):
        return None
    return hook


def _makers(observers: Sequence[object], name: str) -> list[Any]:
    return [getattr(each, name) for each in observers if hasattr(each, name)]


def _send_meter(observers: Sequence[object]) -> Callable[[str], SendMeter] | None:
    makers: list[Callable[[str], SendMeter]] = _makers(observers, "send_meter")
    if len(makers) < 2:
        return makers[0] if makers else None
    return lambda topic: SendMeters([make(topic) for make in makers])
