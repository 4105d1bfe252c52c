"""The workloads of `harness.histories` against a real Pulsar."""
