"""Pulsar's binary protocol spoken in asyncio: a `Transport` without threads and without C++."""
