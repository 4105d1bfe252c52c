"""Destinations of copies, and the options of their producers.

If the transport cannot copy a message, the error is raised before anything is sent or acked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from ...errors import ConfigurationError, ConsumerBusy, NotSupportedError
from ...letters.letter_form import PLAIN, LetterForm
from ...options import ConsumerType, InitialPosition, ProducerOptions, Subscription
from ...transport.interface import Transport

SchemaOf = Callable[[str, int], Awaitable[Any]]
"""`Transport.schema_of`."""


class Destination(NamedTuple):
    """Where copies go and how they are written. Each destination has its own producer.

    Attributes:
        form: Schema version and encryption keys of all copies.
        first_subscription: Created on the topic before its first message, or None.
    """

    topic: str
    form: LetterForm = PLAIN
    first_subscription: str | None = None


async def ensure_subscription(transport: Transport, topic: str, name: str) -> None:
    """Create a subscription on a topic, because a topic without one keeps no messages.

    A consumer subscribes and is closed: producers of the C++ client cannot name an initial
    subscription.
    """
    try:
        consumer = await transport.subscribe(
            Subscription(
                topics=(topic,),
                subscription_name=name,
                consumer_type=ConsumerType.Shared,
                initial_position=InitialPosition.Earliest,
                receiver_queue_size=1,
            )
        )
    except ConsumerBusy:
        return  # a consumer of another type reads the subscription
    await consumer.close()


async def producer_options(
    destination: Destination,
    schema_of: SchemaOf,
    crypto_key_reader: Any,
    schema: Any = None,
    *,
    byte_keys: bool,
    **options: Any,
) -> ProducerOptions:
    """Return the options of a producer that writes copies: unbatched, and chunked if large.

    Args:
        schema: For messages that were written without one.
        byte_keys: True if the transport copies keys of bytes.
    """
    form = destination.form
    if form.version >= 0:
        schema = await schema_of(form.topic, form.version)
    if form.keyed and not byte_keys and getattr(schema, "key_value", False):
        raise NotSupportedError(
            f"messages of {form.topic} are key-value pairs whose keys are bytes, and the transport "
            "cannot copy such keys unchanged"
        )
    if form.secrets and crypto_key_reader is None:
        raise ConfigurationError(
            f"copies must be encrypted with {', '.join(form.secrets)}: give a crypto_key_reader"
        )
    return ProducerOptions(
        topic=destination.topic,
        initial_subscription_name=destination.first_subscription,
        schema=schema,
        batching_enabled=False,
        chunking_enabled=True,
        encryption_key=form.secrets or None,
        crypto_key_reader=crypto_key_reader if form.secrets else None,
        **options,
    )
