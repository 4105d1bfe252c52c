"""One suite over two brokers: what the development broker and a real Pulsar must agree on."""
