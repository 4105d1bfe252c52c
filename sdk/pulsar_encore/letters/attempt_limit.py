"""The limit of failed attempts, after which a message is dead-lettered."""

from __future__ import annotations


def used_up(failed_attempts: int, max_redeliver_count: int) -> bool:
    """Return True if a message with this many failed attempts is to be dead-lettered.

    One limit serves two counts. On the path of `reconsume_later` the count is `reconsume_attempt`,
    which the letter carries. For nacks and ack timeouts it is the redelivery count: the attempt
    that fails has number `redelivery_count + 1`, and a redelivered message has failed
    `redelivery_count` times.
    """
    return failed_attempts > max_redeliver_count
