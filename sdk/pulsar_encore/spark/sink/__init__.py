"""The sink: rows of Spark are published as messages, letters or replays."""

from .data_writers import SinkCommit, batch_writer, check_reachable, stream_writer

__all__ = ["SinkCommit", "batch_writer", "check_reachable", "stream_writer"]
