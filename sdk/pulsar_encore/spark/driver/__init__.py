"""In the driver: topics, positions and cursors, and what each micro-batch takes."""
