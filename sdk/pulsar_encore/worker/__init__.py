"""Workers: they receive messages, call handlers, and settle the messages by the results."""
