"""The results of one run, as they are kept in `results.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..rows import Row

FILE = "results.json"


@dataclass(kw_only=True)
class Section:
    """One benchmark of a run.

    Attributes:
        name: Name of the benchmark.
        title: Its heading.
        about: A paragraph for readers.
        seconds: Its duration.
        rows: Its rows.
        failure: The error that ended it, or "".
        skipped: Why it did not run, or "".
    """

    name: str
    title: str
    about: str
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    failure: str = ""
    skipped: str = ""

    @property
    def complete(self) -> bool:
        return not self.failure and not self.skipped


@dataclass(kw_only=True)
class Results:
    """One run.

    Attributes:
        command: The command that repeats it.
        begun: Start in UTC, ISO 8601.
        pairs: Measured pairs of each row.
        described: Machine, versions and commit; see `machine.described`.
        sections: The benchmarks that ended, in order.
    """

    command: str
    begun: str
    pairs: int
    described: dict[str, Any]
    sections: list[Section] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        return [row for section in self.sections for row in section.rows]

    @property
    def missed(self) -> list[Row]:
        return [row for row in self.rows if not row.met]

    def write(self, folder: Path) -> None:
        """Write `results.json`. An older file stays whole until the new one is complete."""
        text = json.dumps(self._document(), indent=1) + "\n"
        partial = folder / f"{FILE}.partial"
        partial.write_text(text, "utf-8")
        partial.replace(folder / FILE)

    def _document(self) -> dict[str, Any]:
        document = asdict(self)
        for section, written in zip(self.sections, document["sections"], strict=True):
            for row, each in zip(section.rows, written["rows"], strict=True):
                # For readers of the JSON; `read` computes them from the figures.
                each["ratio"] = row.ratio and row.ratio._asdict()
                each["verdict"] = row.verdict
        return document


def read(folder: Path) -> Results:
    """Read the results of a run from its folder.

    Raises:
        OSError: if there is no such file.
        ValueError: if the file has another form.
    """
    document = json.loads((folder / FILE).read_text("utf-8"))
    try:
        sections = [
            Section(**{**each, "rows": [_row(row) for row in each["rows"]]})
            for each in document.pop("sections")
        ]
        return Results(**document, sections=sections)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{FILE} is of another version of the benchmarks: {error}") from error


def _row(document: dict[str, Any]) -> Row:
    names = {each.name for each in fields(Row)}
    return Row(**{name: _frozen(value) for name, value in document.items() if name in names})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
