"""Sphinx extension that shows the dark variant of a figure on dark pages.

A page names `figure.svg`. If there is a `figure-dark.svg` beside it, the page gets both, each with
the class with which Furo hides one of them. Furo's switch between light and dark sets an attribute
of the page. A media query inside an SVG does not see it, so one file for both would not do.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class DarkFigures(SphinxTransform):
    default_priority = 480  # before Sphinx collects the files of a page

    def apply(self, **_: object) -> None:
        for image in list(self.document.findall(nodes.image)):
            file = PurePosixPath(image["uri"])
            dark = file.with_stem(f"{file.stem}-dark")
            folder = self.env.doc2path(self.env.docname).parent
            if file.suffix != ".svg" or not (folder / dark).is_file():
                continue
            other = image.deepcopy()
            other["uri"] = str(dark)
            image["classes"].append("only-light")
            other["classes"].append("only-dark")
            place = image.parent.index(image)
            image.parent.insert(place + 1, other)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(DarkFigures)
    return {"parallel_read_safe": True}
