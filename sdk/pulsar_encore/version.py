"""The version of this package; the build reads it here, too."""

from typing import Final

VERSION: Final = "0.1.0"
