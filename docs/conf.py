"""Sphinx configuration of the documentation; `make docs` builds it into `docs/_build/html`."""

from __future__ import annotations

import tomllib
from pathlib import Path

_PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
_METADATA = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]

project = _METADATA["name"]
author = "pulsar-encore authors"
release = version = _METADATA["version"]

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True

# Headings get the anchors that GitHub gives them, so that one link works in both places.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
