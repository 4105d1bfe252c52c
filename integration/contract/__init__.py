"""The contract suite against a real Pulsar."""
