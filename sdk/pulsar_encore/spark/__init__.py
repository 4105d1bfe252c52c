"""Pulsar for PySpark: a source, a sink and the triage of dead letters.

Needs `pip install "pulsar-encore[spark]"` and Java 17 or later.
"""
