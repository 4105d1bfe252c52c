"""`BatchFailure`: the handler of a `BatchWorker` names the messages that failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ConfigurationError


class BatchFailure(Exception):
    """Some messages of a list failed, each for a reason of its own.

    The worker settles each of these messages as `Worker` does after the same error: `Reject`
    dead-letters it, `Retry` asks for another attempt, and any other error counts as an attempt. The
    other messages of the list are acked. With `order="partition"`, only the messages before the
    first failed message are acked, and the messages behind it are passed to the handler again.

    Args:
        errors: The error of each failed message, by its index in the list. Empty if all messages
            were processed.

    Raises:
        ConfigurationError: if a key is no index, or a value is no exception.

    Example:
        ```python
        async def index(documents: list[Document]) -> None:
            response = await search.bulk(documents)
            errors = {n: SearchError(item) for n, item in enumerate(response) if item.failed}
            if errors:
                raise pulsar_encore.BatchFailure(errors)
        ```
    """

    __module__ = "pulsar_encore"

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        if not isinstance(errors, Mapping):
            raise ConfigurationError(
                f"BatchFailure takes a dict of index to exception, got {type(errors).__name__}: "
                "write BatchFailure({0: error})"
            )
        for index, error in errors.items():
            if isinstance(index, bool) or not isinstance(index, int) or index < 0:
                raise ConfigurationError(
                    f"BatchFailure takes indexes from 0 as keys, got {index!r}: give the position "
                    "of the failed message in the list"
                )
            if not isinstance(error, Exception):
                raise ConfigurationError(
                    f"BatchFailure takes exceptions as values, got {error!r} at index {index}: "
                    'write Reject("reason") or ValueError("reason")'
                )
        super().__init__(dict(errors))
        self.errors: dict[int, Exception] = dict(errors)

    def __str__(self) -> str:
        first = next(iter(self.errors.items()), None)
        if first is None:
            return "no message failed"
        return f"{len(self.errors)} messages failed; index {first[0]}: {first[1]!r}"

    def checked_errors(self, count: int) -> dict[int, Exception]:
        """Return the errors of a list of `count` messages.

        Raises:
            ConfigurationError: if an index is not in the list.
        """
        wrong = [index for index in self.errors if index >= count]
        if wrong:
            raise ConfigurationError(
                f"BatchFailure has the index {wrong[0]}, and the list has {count} messages: give "
                "the positions of the failed messages in the list"
            ) from self
        return self.errors
