"""The tests of acks in transactions, against a real Pulsar."""

from tests.harness.contract.test_transactional_acks import *  # noqa: F403
