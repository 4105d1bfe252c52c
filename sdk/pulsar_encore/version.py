"""The version of this package. The build reads it from this file."""

from typing import Final

VERSION: Final = "0.1.0"
