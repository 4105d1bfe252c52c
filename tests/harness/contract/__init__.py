"""One test suite for both brokers: the development broker and a real Pulsar must behave alike."""
