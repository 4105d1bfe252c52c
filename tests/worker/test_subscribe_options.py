"""An option of `Client.subscribe` that is given to a worker is refused with its right place."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client

BOTH = pytest.mark.parametrize("kind", [encore.Worker, encore.BatchWorker])


def refused(kind: Any, client: Client, **keywords: Any) -> str:
    with pytest.raises(encore.ConfigurationError) as caught:
        kind(client, "orders", "billing", print, **keywords)
    return str(caught.value)


@BOTH
async def test_an_option_that_a_worker_sets_itself_names_the_parameter_of_the_worker(
    kind: Any, client: Client
) -> None:
    text = refused(kind, client, dead_letter_policy=encore.DeadLetterPolicy(3))
    assert text.startswith("a worker sets dead_letter_policy itself: use `retry=RetryPolicy(")


@BOTH
async def test_an_option_that_a_worker_passes_on_names_subscribe_options(
    kind: Any, client: Client
) -> None:
    assert "`options=SubscribeOptions(properties=...)`" in refused(
        kind, client, properties={"a": "b"}
    )


@BOTH
async def test_an_unknown_keyword_is_a_type_error(kind: Any, client: Client) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'concurency'"):
        kind(client, "orders", "billing", print, concurency=3)


@BOTH
def test_the_signature_has_the_parameters_of_the_worker_only(kind: Any) -> None:
    parameters = inspect.signature(kind).parameters
    assert {"client", "retry", "options"} <= parameters.keys()
    assert "keywords" not in parameters
