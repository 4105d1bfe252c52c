"""Delivery of arrived messages to the application: the queue, batch receive and the listener."""
