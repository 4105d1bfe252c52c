"""Decoding of message values into Arrow columns, by the format in the options."""
