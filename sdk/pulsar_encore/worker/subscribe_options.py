"""The options of `Client.subscribe` that a worker passes on, and why it sets the others itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, TypedDict, TypeVar, Unpack

from ..consumer.events import ConsumerEvent
from ..errors import ConfigurationError
from ..options import ConsumerCryptoFailureAction, RegexSubscriptionMode, SpillingNackIndex

P = ParamSpec("P")
S = TypeVar("S")


class SubscribeKeywords(TypedDict, total=False):
    """Keywords of `SubscribeOptions`. `Client.subscribe` documents them."""

    consumer_name: str | None
    properties: dict[str, str] | None
    is_read_compacted: bool
    crypto_key_reader: Any
    crypto_failure_action: ConsumerCryptoFailureAction
    replicate_subscription_state_enabled: bool
    max_pending_chunked_message: int
    auto_ack_oldest_chunked_message_on_queue_full: bool
    start_message_id_inclusive: bool
    key_shared_policy: Any
    batch_index_ack_enabled: bool
    regex_subscription_mode: RegexSubscriptionMode
    pattern_auto_discovery_period: int
    broker_consumer_stats_cache_time_ms: int
    negative_ack_precision_bit_cnt: int | None
    ack_group_time_ms: int
    ack_group_max_size: int
    event_listener: Callable[[ConsumerEvent], object] | None
    max_unacked_messages: int
    max_leases: int
    nack_index: SpillingNackIndex | None


_OWNED: Final = {
    "topic": "give it as `topics` of the worker",
    "subscription_name": "give it as `subscription` of the worker",
    "schema": "give it as `schema` of the worker",
    "initial_position": "give it as `initial_position` of the worker",
    "state": "give it as `state` of the worker",
    "consumer_type": 'choose it by `order`: "none" (Shared), "key" (Key_Shared) or "partition" '
    "(Failover)",
    "receiver_queue_size": "choose it by `prefetch` of the worker",
    "max_total_receiver_queue_size_across_partitions": "choose it by `prefetch` of the worker",
    "unacked_messages_timeout_ms": "use `timeout` of the worker, which ends the handler",
    "ack_timeout_redelivery_backoff": "use `timeout` and `retry` of the worker",
    "negative_ack_redelivery_delay_ms": "use `retry=RetryPolicy(backoff=...)` of the worker",
    "negative_ack_redelivery_backoff": "use `retry=RetryPolicy(backoff=...)` of the worker",
    "dead_letter_policy": "use `retry=RetryPolicy(attempts=..., dead_letter_topic=...)`",
    "retry_enable": "use `retry=RetryPolicy(letters_after=...)` of the worker",
    "nack_overflow": "use `retry=RetryPolicy(letters_after=...)` of the worker",
    "nack_overflow_share": "use `retry=RetryPolicy(letters_after=...)` of the worker",
    "nack_overflow_delay": "use `retry=RetryPolicy(letters_after=...)` of the worker",
    "message_listener": "the handler of the worker receives the messages",
    "batch_receive_policy": "use `max_messages` and `max_wait` of a `BatchWorker`",
    "ordered_leases": 'use `order="key"` of the worker',
    "is_pattern_topic": "give an `re.Pattern` as `topics` of the worker",
    "ack_receipt_enabled": "the worker waits for the receipts of its acks when it ends",
}


class SubscribeOptions:
    """Options of `Client.subscribe` that a worker does not set itself.

    Raises:
        ConfigurationError: for an option that the worker sets itself, with the parameter of the
            worker that replaces it, and for an unknown option.

    Example:
        ```python
        options = pulsar_encore.SubscribeOptions(properties={"team": "billing"})
        worker = pulsar_encore.Worker(client, "orders", "billing", bill, options=options)
        ```
    """

    __slots__ = ("keywords",)

    def __init__(self, **keywords: Unpack[SubscribeKeywords]) -> None:
        for name in keywords:
            if name in _OWNED:
                raise ConfigurationError(f"a worker sets {name} itself: {_OWNED[name]}")
            if name not in SubscribeKeywords.__annotations__:
                known = ", ".join(sorted(SubscribeKeywords.__annotations__))
                raise ConfigurationError(f"{name} is not an option of subscribe. Known: {known}")
        self.keywords: SubscribeKeywords = keywords

    def __repr__(self) -> str:
        return f"SubscribeOptions({', '.join(f'{k}={v!r}' for k, v in self.keywords.items())})"


def explains_misplaced_options(
    init: Callable[Concatenate[S, P], None],
) -> Callable[Concatenate[S, P], None]:
    """Decorate the `__init__` of a worker, to name the right place of an option of `subscribe`.

    Python's TypeError would say only that the keyword is unexpected.
    """
    parameters = frozenset(init.__kwdefaults__ or ())

    @functools.wraps(init)
    def checked(self: S, /, *args: P.args, **keywords: P.kwargs) -> None:
        for name in keywords:
            if name in parameters:
                continue
            if name in _OWNED:
                raise ConfigurationError(f"a worker sets {name} itself: {_OWNED[name]}")
            if name in SubscribeKeywords.__annotations__:
                raise ConfigurationError(
                    f"{name} is an option of the subscription: give a worker "
                    f"`options=SubscribeOptions({name}=...)`"
                )
        init(self, *args, **keywords)

    return checked
