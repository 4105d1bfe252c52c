"""In a task: an exact range of a topic as Arrow record batches."""
