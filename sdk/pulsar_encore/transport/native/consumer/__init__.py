"""The `ConsumerLink` over the protocol."""
