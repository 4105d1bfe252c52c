"""The programs of `docs/recipes` on a real Pulsar, and with a real PostgreSQL."""
