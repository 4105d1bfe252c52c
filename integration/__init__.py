"""Tests against a real Pulsar broker; `make integration` runs them."""
