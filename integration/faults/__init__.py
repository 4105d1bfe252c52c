"""The cases of `harness.faults` against a real Pulsar."""
