"""This package's version, read from its metadata."""

from importlib.metadata import version

VERSION = version("pulsar-encore")
