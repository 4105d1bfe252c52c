"""The cases of `tests.harness.faults` against a real Pulsar."""
