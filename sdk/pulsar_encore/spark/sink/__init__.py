"""The sink: rows of Spark as messages, letters and replays.

Its seam is `batch_writer` and `stream_writer`: options and a schema in, checked; a writer out.
"""

from .data_writers import SinkCommit, batch_writer, check_reachable, stream_writer

__all__ = ["SinkCommit", "batch_writer", "check_reachable", "stream_writer"]
