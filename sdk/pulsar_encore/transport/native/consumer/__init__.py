"""The `TransportConsumer` over the protocol."""
