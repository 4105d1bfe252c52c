"""The due index that spills to a `BlobStore`, after Pulsar's PIP-195."""
