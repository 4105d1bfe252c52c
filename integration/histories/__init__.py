"""The workloads of `tests.harness.histories` against a real Pulsar."""
