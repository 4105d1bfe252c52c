"""A worker: it receives messages, calls a handler for each, and settles them."""
