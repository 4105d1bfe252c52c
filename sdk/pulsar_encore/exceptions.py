"""The names of `pulsar.exceptions`, for programs that import that module."""

from __future__ import annotations

from .errors import pulsar_errors
from .errors.pulsar_errors import *  # noqa: F403

__all__ = []
__all__ += pulsar_errors.__all__
