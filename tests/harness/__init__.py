"""The parts that the fast tests and the integration tests share.

`tests/` runs them on the development broker, `integration/` on a real Pulsar.
"""
