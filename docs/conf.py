"""Sphinx configuration of the documentation; `make docs` builds it into `docs/_build/html`."""

from __future__ import annotations

from importlib.metadata import version as installed_version

project = "pulsar-encore"
author = "pulsar-encore authors"
release = version = installed_version(project)

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True

# Headings get the anchors that GitHub gives them, so that one link works in both places.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
