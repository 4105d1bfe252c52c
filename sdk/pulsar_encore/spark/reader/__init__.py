"""The tasks' side of a read: an exact range of a topic becomes Arrow record batches."""
