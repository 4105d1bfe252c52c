"""The `ProducerLink` over the protocol."""
