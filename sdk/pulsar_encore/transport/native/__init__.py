"""The native transport: Pulsar's binary protocol in asyncio, without the C++ client."""
