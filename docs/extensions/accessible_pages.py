"""Sphinx extension that mends the HTML where a keyboard or a screen reader would not get along.

`make docs-check` looks at the pages with axe. Each rule here is for one of its findings.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_BODY = (
    # Wide code and wide tables scroll within themselves: the keyboard has to reach them.
    (re.compile(r'(?<=<div class="highlight"><pre)(?=>)'), ' tabindex="0"'),
    (re.compile(r'(?<=<div )(?=class="table-wrapper\b)'), 'tabindex="0" '),
    # The parameters of a signature are a list without terms.
    (re.compile(r'(?<=<dl)(?=>\s*<dd><em class="sig-param">)'), ' role="presentation"'),
)
_NAVIGATION = ((re.compile(r'(?<=role="heading")(?=>)'), ' aria-level="2"'),)


def mend(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    for key, rules in (("body", _BODY), ("furo_navigation_tree", _NAVIGATION)):
        for place, attribute in rules:
            if key in context:
                context[key] = place.sub(attribute, context[key])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", mend, priority=900)  # furo adds its tree before
    return {"parallel_read_safe": True}
