"""Codecs: how the payload of a message becomes an object of the application, and back."""
