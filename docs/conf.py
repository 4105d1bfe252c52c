"""Sphinx configuration of the documentation; `make docs` builds it into `docs/_build/html`."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "pulsar-encore"
author = "pulsar-encore authors"
release = version = installed_version(project)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "accessible_pages",
    "api_reference",
    "dark_figures",
]
exclude_patterns = ["figures/bench/tables.md", "_build", "check", "diagrams/*.md", "extensions"]
nitpicky = True

# Headings get the anchors that GitHub gives them, so that one link works in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "deflist"]

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
pygments_dark_style = "github-dark"
copybutton_exclude = ".linenos, .gp"

autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_preprocess_types = False
add_module_names = False
toc_object_entries_show_parents = "hide"

# In docstrings, `name` links to the public object with this name, and is code if there is none.
default_role = "py:obj"

nitpick_ignore_regex = [
    # Python and libraries, whose inventories need the network, and the protocol of Pulsar.
    (
        "py:.*",
        r"(asyncio|collections|concurrent|datetime|logging|os|random|re"
        r"|opentelemetry|prometheus_client|pulsar_encore\.wire|pyspark)\..*",
    ),
    # Types of parameters that applications only pass on, and what they stand for is in the text.
    (
        "py:class",
        r"(.*\.)?(AnyId|BackoffLike|BrokerTopic|BuiltDeadLetterPolicy|ContextFields|DetachedMessage"
        r"|DrainDeadline|KeyFields|OutgoingMessage|RenewedLease|Runnable|Span|SparkSession"
        r"|Subscription|SubscribeKeywords|Transport|_Writer|timedelta)",
    ),
    # Type variables.
    ("py:class", r"(.*\.)?_?(T|T_co|T_contra|K|V|M|R)"),
]
