"""One broker with transactions for the tests of this folder, which may restart it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.pulsar_server import Broker, own_broker


@pytest.fixture(scope="package")
def transactional() -> Iterator[Broker]:
    with own_broker("standalone", transactionCoordinatorEnabled="true") as broker:
        yield broker


@pytest.fixture
def transactional_url(transactional: Broker) -> str:
    return transactional.service_url
