"""The consumer: the methods of `pulsar-client`, implemented over the parts of this package."""
