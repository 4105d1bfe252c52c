"""The driver's side of a read: topics, offsets, cursors and the planning of micro-batches."""
