"""The `TransportProducer` of the native transport."""
