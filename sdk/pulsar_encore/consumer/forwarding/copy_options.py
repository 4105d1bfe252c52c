"""What a producer of copies is made with: the schema version and the secrets of their form.

What the transport cannot copy is refused by name, before anything is sent or acked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ...errors import ConfigurationError, NotSupportedError
from ...letters.letter_form import LetterForm
from ...options import ProducerOptions

SchemaOf = Callable[[str, int], Awaitable[Any]]
"""`Transport.schema_of`."""


async def producer_options(
    form: LetterForm,
    schema_of: SchemaOf,
    crypto_key_reader: Any,
    schema: Any = None,
    *,
    byte_keys: bool,
    **options: Any,
) -> ProducerOptions:
    """Options of a producer that writes copies of a form: unbatched, chunked where they are large.

    Args:
        form: What it writes.
        schema_of: Finds the schema of a version.
        crypto_key_reader: Has the keys to encrypt with, or None.
        schema: For messages that were written without one.
        byte_keys: The transport copies keys of bytes.
        options: Further `ProducerOptions`.

    Raises:
        NotSupportedError: Nothing can write such copies.
        TransportError: The schema cannot be had.
    """
    if form.version >= 0:
        schema = await schema_of(form.topic, form.version)
    if form.keyed and not byte_keys and getattr(schema, "key_value", False):
        raise NotSupportedError(
            f"messages of {form.topic} are key-value pairs whose keys are bytes, and the transport "
            "cannot copy those: the copies' keys would be others"
        )
    if form.secrets and crypto_key_reader is None:
        raise ConfigurationError(
            f"copies must be encrypted with {', '.join(form.secrets)}: give a crypto_key_reader"
        )
    return ProducerOptions(
        schema=schema,
        batching_enabled=False,
        chunking_enabled=True,
        encryption_key=form.secrets or None,
        crypto_key_reader=crypto_key_reader if form.secrets else None,
        **options,
    )
