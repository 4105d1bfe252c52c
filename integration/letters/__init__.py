"""Helpers of the letter tests: the Java client, and a consumer to be killed."""
