"""The checked parameters of a worker, and the subscription that they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from ..codecs.bound_codec import bind
from ..consumer.events import ConsumerEvent
from ..deadletters.dead_letter_topic import SUBSCRIPTION
from ..errors import ConfigurationError
from ..options import ConsumerType, DeadLetterPolicy, InitialPosition, RocksState
from ..options.checks import (
    boolean,
    check_choice,
    integer,
    optional_text,
    seconds,
    text,
    topic_name,
)
from ..values.letter_topic_names import shared_dead_topic_of
from ..values.topic_names import full_name
from .breaker import Breaker
from .commit_queue import Transactional
from .outbox import PublishTo
from .retry_policy import RetryPolicy
from .scheduler import Order
from .subscribe_options import SubscribeOptions

Topics: TypeAlias = "str | Sequence[str] | re.Pattern[str] | Mapping[str, int]"
"""Topic names with or without priorities, or a pattern."""

DEFAULT_MAX_BYTES: Final = 64 * 1024 * 1024
#: Subscription that keeps dead letters until `pulsar-encore dlq replay` has read them.
LETTER_SUBSCRIPTION: Final = SUBSCRIPTION
_UNLIMITED: Final = 2**31 - 1
#: A handler that runs longer than this is named in `Worker.health`, in seconds.
LONG_HANDLER_S: Final = 300.0
#: A worker takes no more messages while so many wait because of a failure.
HELD_LIMIT: Final = 10_000


_CONSUMER_TYPES: Final = {
    Order.NONE: ConsumerType.Shared,
    Order.KEY: ConsumerType.KeyShared,
    Order.PARTITION: ConsumerType.Failover,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """`Worker` documents the fields and their units."""

    topics: Topics
    subscription: str
    schema: Any = None
    concurrency: int = 16
    max_bytes: int = DEFAULT_MAX_BYTES
    order: Order | str = Order.NONE
    timeout: float | timedelta | None = None
    drain: float | timedelta = 20.0
    prefetch: int | None = None
    retry: RetryPolicy
    breaker: Breaker | None = None
    reject_limit: int | None = 20
    initial_position: InitialPosition = InitialPosition.Latest
    state: RocksState | None = None
    publish: PublishTo | None = None
    transactional: bool | Transactional = False
    name: str | None = None
    on_failure: Literal["raise", "terminate"] = "raise"
    start_retry: bool = True
    options: SubscribeOptions | None = None

    def __post_init__(self) -> None:
        names = self.topic_names
        for each in names:
            topic_name(each, "topics")
        if self.pattern is None and not names:
            raise ConfigurationError("topics must name at least one topic, got an empty collection")
        if self.pattern is not None and self.pattern.flags & ~re.UNICODE:
            raise ConfigurationError(
                f"topics {self.pattern!r} has flags, which topic patterns do not have: write them "
                'into the expression, such as "[Oo]rders-.*" for re.IGNORECASE'
            )
        if isinstance(self.topics, Mapping):
            for each, priority in self.topics.items():
                integer(priority, f"the priority of topic {each!r}", low=-(2**31))
        text(self.subscription, "subscription")
        integer(self.concurrency, "concurrency", low=1, high=100_000)
        integer(self.max_bytes, "max_bytes", low=1)
        try:
            object.__setattr__(self, "order", Order(self.order))
        except ValueError:
            choices = ", ".join(f'"{each}"' for each in Order)
            raise ConfigurationError(
                f"order must be one of {choices}, got {self.order!r}"
            ) from None
        if self.timeout is not None:
            object.__setattr__(self, "timeout", seconds(self.timeout, "timeout"))
        object.__setattr__(self, "drain", seconds(self.drain, "drain", low=0.0))
        if self.prefetch is not None:
            integer(self.prefetch, "prefetch", low=1)
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigurationError(
                f"retry must be a RetryPolicy, got {type(self.retry).__name__}: for example "
                "RetryPolicy(attempts=3, backoff=[1, 10, 60])"
            )
        if not isinstance(self.breaker, Breaker | None):
            raise ConfigurationError(
                f"breaker must be a Breaker or None, got {type(self.breaker).__name__}: for "
                "example Breaker(on=(ConnectionError, TimeoutError))"
            )
        if self.reject_limit is not None:
            integer(self.reject_limit, "reject_limit", low=1)
        if not isinstance(self.publish, PublishTo | None):
            raise ConfigurationError(
                f"publish must be a topic name or a PublishTo, got {type(self.publish).__name__}"
            )
        if not isinstance(self.transactional, bool | Transactional):
            raise ConfigurationError(
                "transactional must be True, False or a Transactional, got "
                f"{type(self.transactional).__name__}: for example Transactional(timeout=30)"
            )
        optional_text(self.name, "name")
        check_choice(self.on_failure, "on_failure", "raise", "terminate")
        boolean(self.start_retry, "start_retry")
        if not isinstance(self.options, SubscribeOptions | None):
            raise ConfigurationError(
                f"options must be SubscribeOptions(...), got {type(self.options).__name__}"
            )
        if not isinstance(self.initial_position, InitialPosition):
            raise ConfigurationError(
                "initial_position must be InitialPosition.Latest or InitialPosition.Earliest, got "
                f"{self.initial_position!r}"
            )
        if not isinstance(self.state, RocksState | None):
            raise ConfigurationError(
                f"state must be a RocksState(path) or None, got {type(self.state).__name__}"
            )
        bind(self.schema, reads=True)  # raises if it is no schema
        self._check_loops()
        self._check_combinations()

    def _check_loops(self) -> None:
        consumed = {full_name(each) for each in self.topic_names}
        dead = self.retry.dead_letter_topic
        if self.pattern is not None and self.publish is not None:
            publish = full_name(self.publish.topic)
            if re.fullmatch(full_name(self.pattern.pattern), publish):
                raise ConfigurationError(
                    f"publish {self.publish.topic!r} matches the pattern {self.pattern.pattern!r} "
                    "that the worker reads, which is a loop: choose another topic"
                )
        for name, topic in (
            ("publish", None if self.publish is None else self.publish.topic),
            ("dead_letter_topic", dead),
        ):
            if topic is not None and full_name(topic) in consumed:
                raise ConfigurationError(
                    f"{name} {topic!r} is a topic that the worker reads, which is a loop: choose "
                    "another topic"
                )

    def _check_combinations(self) -> None:
        publish = () if self.publish is None else (self.publish.topic,)
        for each in (*self.topic_names, *publish) if self.transactional else ():
            if full_name(each).startswith("non-persistent:"):
                raise ConfigurationError(
                    f"{each} is not persistent, so it cannot be part of a transaction: use a "
                    "persistent topic, or leave transactional out"
                )
        keywords: Mapping[str, object] = {} if self.options is None else self.options.keywords
        if "key_shared_policy" in keywords and self.order is not Order.KEY:
            raise ConfigurationError(
                f'key_shared_policy needs order="key", and this worker has order="{self.order}"'
            )
        if keywords.get("is_read_compacted") and self.order is not Order.PARTITION:
            raise ConfigurationError(
                'is_read_compacted needs order="partition", because only a Failover consumer can '
                f'read the compacted topic; this worker has order="{self.order}"'
            )

    @property
    def pattern(self) -> re.Pattern[str] | None:
        return self.topics if isinstance(self.topics, re.Pattern) else None

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The topics as they were given; empty for a pattern."""
        topics = self.topics
        if isinstance(topics, re.Pattern):
            return ()
        if isinstance(topics, str):
            return (topics,)
        if isinstance(topics, Mapping) or (
            isinstance(topics, Sequence) and not isinstance(topics, bytes)
        ):
            return tuple(topics)
        raise ConfigurationError(
            "topics must be a name, a list of names, an re.Pattern, or a dict of name to priority, "
            f"got {type(topics).__name__}"
        )

    @property
    def priorities(self) -> dict[str, int]:
        """Priorities by full topic name; empty if there are none."""
        if not isinstance(self.topics, Mapping):
            return {}
        return {full_name(topic): priority for topic, priority in self.topics.items()}

    @property
    def timeout_s(self) -> float | None:
        return None if self.timeout is None else seconds(self.timeout, "timeout")

    @property
    def prefetch_messages(self) -> int:
        return 2 * self.concurrency if self.prefetch is None else self.prefetch

    @property
    def transactions(self) -> Transactional | None:
        """How results are grouped in transactions; None without transactions."""
        if isinstance(self.transactional, Transactional):
            return self.transactional
        return Transactional() if self.transactional else None

    @property
    def drain_s(self) -> float:
        return seconds(self.drain, "drain", low=0.0)

    @property
    def consumer_state(self) -> RocksState | None:
        """The state of the consumer: only messages whose handler started count as attempted.

        A killed process would otherwise count an attempt at each message that it had prefetched.
        """
        if self.state is None or self.state.count_attempts in ("explicit", "lazy"):
            return self.state
        return replace(self.state, count_attempts="explicit")

    @property
    def writes_attempts(self) -> bool:
        """True if the worker writes each attempt to the state when its handler starts."""
        state = self.consumer_state
        return state is not None and state.count_attempts != "lazy"

    @property
    def has_exact_attempts(self) -> bool:
        """True if the state counts started handlers only. "lazy" also counts waiting messages."""
        state = self.consumer_state
        return state is not None and state.count_attempts == "explicit"

    @property
    def consumer_type(self) -> ConsumerType:
        return _CONSUMER_TYPES[Order(self.order)]

    @property
    def uses_retry_letters(self) -> bool:
        """True if long delays go through the retry letter topic.

        With an order they would let later messages overtake. A pattern might match the retry letter
        topic itself.
        """
        return (
            self.order is Order.NONE
            and self.retry.letters_after is not None
            and self.pattern is None
        )

    @property
    def core_retry(self) -> RetryPolicy:
        """The policy for the core. Without retry letters, a long delay is a nack."""
        if self.uses_retry_letters or self.retry.letters_after is None:
            return self.retry
        return replace(self.retry, letters_after=None)

    def subscribe_keywords(
        self, event_listener: Callable[[ConsumerEvent], object]
    ) -> dict[str, Any]:
        """Return the arguments of `Client.subscribe`."""
        more: dict[str, Any] = {} if self.options is None else dict(self.options.keywords)
        names = self.topic_names
        return more | {
            "topic": self.pattern or (names[0] if len(names) == 1 else list(names)),
            "subscription_name": self.subscription,
            "consumer_type": self.consumer_type,
            "schema": self.schema,
            "initial_position": self.initial_position,
            "receiver_queue_size": self.prefetch_messages,
            "dead_letter_policy": self.dead_letter_policy(),
            "retry_enable": self.uses_retry_letters,
            "state": self.consumer_state,
            "event_listener": event_listener,
        }

    def dead_letter_policy(self) -> DeadLetterPolicy:
        """Return the policy of the consumer. It has no limit, because the worker counts."""
        return DeadLetterPolicy(
            _UNLIMITED,
            dead_letter_topic=self.retry.dead_letter_topic
            or (lambda topic: shared_dead_topic_of(topic, self.subscription)),
            initial_subscription_name=LETTER_SUBSCRIPTION,
            transactional=self.transactions is not None,
        )
