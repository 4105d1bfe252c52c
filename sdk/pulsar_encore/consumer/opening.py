"""Opening a subscription: the topics, the retry-letter topic beside them, the way out for letters.

Either everything is open, or nothing: a part that fails closes what was opened before it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ..options import ConsumerOptions, ConsumerType
from ..transport.base import ConsumerLink, Transport
from ..transport.merged import MergedLink
from .consumer import Consumer
from .letter_topics import LetterTopics

_NAME_DIGITS: Final = 5  # as many as Java's


async def open_link(transport: Transport, options: ConsumerOptions) -> ConsumerLink:
    """Subscribe to the topics, and to the retry-letter topic where there is one.

    Raises:
        TransportError: The broker refused, or could not be reached.
    """
    topic = options.retry_letter_topic
    if options.consumer_name is None and (topic is not None or _several(options)):
        # Java names the consumer, and all subscriptions under it alike; stock leaves them nameless.
        name = uuid.uuid4().hex[:_NAME_DIGITS]
        options = replace(options, consumer_name=name)
    main = await transport.subscribe(options)
    if topic is None:
        return main
    try:
        letters = await transport.subscribe(
            replace(
                options,
                topics=(topic,),
                pattern=None,
                # Always Shared: the broker delays letters on no other type, and Java's consumers of
                # the same subscription would find a ConsumerBusy (consumer-semantics notes 10.1).
                consumer_type=ConsumerType.Shared,
                key_shared_policy=None,
                is_read_compacted=False,
                message_listener=None,
                retry_enable=False,
                nack_overflow=None,
                dead_letter_policy=None,
            )
        )
    except BaseException:
        await main.close()
        raise
    return MergedLink(main, letters)


def _several(options: ConsumerOptions) -> bool:
    return options.pattern is not None or len(options.topics) > 1


def make_consumer(
    transport: Transport,
    link: ConsumerLink,
    options: ConsumerOptions,
    on_closed: Callable[[Consumer], None],
) -> Consumer:
    """The consumer over an open link, with its letter topics."""
    letters = None
    if options.dead_letter_policy is not None:
        letters = LetterTopics(
            options,
            options.dead_letter_policy,
            link.consumer_name,
            transport,
        )
    return Consumer(link, options, letters=letters, on_closed=on_closed)
