"""Metrics, traces and events on a real Pulsar."""
