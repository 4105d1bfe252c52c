"""The due index that spills to a `BlobStore`, after Pulsar's PIP-195.

The broker's design: `docs/notes/delayed-delivery.md#pip-195-delayed-delivery-in-buckets`.
"""
