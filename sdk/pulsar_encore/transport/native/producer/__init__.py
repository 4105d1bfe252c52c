"""The `TransportProducer` over the protocol."""
