"""Check that the prose of the repository is plain English: `python -m tests.prose [PATH ...]`.

The check counts a few habits that make a reader go back and read a sentence twice, in docstrings,
comments and Markdown pages. Code, quotations and the glossary are exempt. A folder fails when its
rates are above the ceilings below. `tests/prose_pending.txt` lists the folders that are not
rewritten yet. They may exceed the ceilings, and they fail as soon as they do not, so that the list
cannot go stale. A hit is a candidate; whether the sentence is clear is for a reader to judge.

    python -m tests.prose                          # check everything, as `make lint` does
    python -m tests.prose sdk/pulsar_encore/core   # check one folder, or one file
    python -m tests.prose docs --show              # print every hit with its place
    python -m tests.prose docs --show what         # print the hits of one pattern
    python -m tests.prose --by-folder              # print the rates of each folder
    python -m tests.prose --failing                # print the folders above the ceilings
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PENDING = Path("tests/prose_pending.txt")
CHECKED_FOLDERS = ("sdk", "tests", "integration", "examples", "docs")
GLOSSARY = Path("docs/glossary.md")  # it lists the words that we no longer use
SUFFIXES = {".py", ".pyi", ".md"}

#: Hits per 1,000 words. Well-kept Python libraries have 0 to 1.5 of "what" and almost none of the
#: other patterns.
CEILING_WHAT = 2.0
CEILING_OTHERS = 3.0
#: A folder with this many hits or fewer passes at any rate, because a short folder has few words.
FREE_HITS = 5

PATTERNS: dict[str, re.Pattern[str]] = {
    # "What" in place of a noun. Questions are fine, and so is "what happened".
    "what": re.compile(
        r"\bwhat\b"
        r"(?! (?:is|are|does|do|did|should|can|happens|you) [^.?!]{0,80}\?)"
        r"(?! (?:happens|happened|you|to|we)\b)",
        re.IGNORECASE,
    ),
    # A sentence that begins with its object: "Of those, it keeps none."
    "of-opening": re.compile(
        r"(?:^|(?<=[.!?] ))(?:Of|By|To|In|With|Behind|Beside) "
        r"(?:what|which|whom|those|it|them|one|the one|whoever)\b"
    ),
    "whose": re.compile(r"\b(?:of which|of whom|whose|thereof|wherein|whereof)\b", re.IGNORECASE),
    "body": re.compile(r"\b(?:nobody|somebody|whoever|anybody)\b", re.IGNORECASE),
    "that-none": re.compile(
        r"\b(?:(?:is|are|has|there is) none|(?:nor|neither) is|nor are)\b", re.IGNORECASE
    ),
    # Word-for-word translations and worn-out adverbs.
    "calque": re.compile(
        r"\b(?:anew|once more|besides|lets? go of|let go|under way|by itself|by name"
        r"|at its moment|as far as|so many|as it (?:was|is|came))\b",
        re.IGNORECASE,
    ),
    "the-one": re.compile(r"\b(?:(?:the )?one that|that one|those that|of those)\b", re.IGNORECASE),
    "passive": re.compile(
        r"\bis (?:asked|told|said|heard|known|seen|looked|given back|done)"
        r" (?:for|of|to|by|that)?\b",
        re.IGNORECASE,
    ),
}

_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_CODE = re.compile(r"``.+?``|`[^`]*`")
_QUOTATION = re.compile(r'(?<![\w"])"[^"]{1,400}"(?!\w)|“[^”]{1,400}”')
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"(*])")
_FENCE = re.compile(r"^\s*(```|~~~)")
_HTML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
#: A line that begins a paragraph of its own: a list item, a table row, a heading.
_ITEM = re.compile(r"^\s*(?:[-*+] |\d+[.)] |\||#{1,6} )")
#: A line that is no prose: a quotation or an example of the interpreter.
_EXEMPT_LINE = re.compile(r"^\s*(?:>|\.\.\. )")
_DIRECTIVE = ("#!", "# type:", "# noqa", "# pyright", "# mypy", "# ruff", "# fmt")


@dataclass(frozen=True, slots=True)
class Hit:
    """One place in the prose that matches a pattern."""

    path: Path
    line: int
    pattern: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.pattern}: {self.sentence}"


@dataclass(slots=True)
class Tally:
    """Words and hits of one folder."""

    words: int = 0
    hits: list[Hit] = field(default_factory=list)

    def rates(self) -> dict[str, float]:
        """Hits per 1,000 words, by pattern."""
        counts = Counter(hit.pattern for hit in self.hits)
        return {name: 1000 * counts[name] / max(self.words, 1) for name in PATTERNS}

    def passes(self) -> bool:
        rates = self.rates()
        others = sum(rates.values()) - rates["what"]
        within = rates["what"] <= CEILING_WHAT and others <= CEILING_OTHERS
        return within or len(self.hits) <= FREE_HITS


@dataclass(slots=True)
class Paragraph:
    """Lines of prose joined with single spaces, and the line number of each."""

    starts: list[tuple[int, int]] = field(default_factory=list)
    text: str = ""

    def append(self, number: int, line: str) -> None:
        words = " ".join(line.split())
        if self.text:
            self.text += " "
        self.starts.append((len(self.text), number))
        self.text += words

    def line_at(self, offset: int) -> int:
        return max((start, number) for start, number in self.starts if start <= offset)[1]

    def sentence_at(self, offset: int) -> str:
        begin = 0
        for end in _SENTENCE_END.finditer(self.text):
            if end.start() > offset:
                return self.text[begin : end.start()]
            begin = end.end()
        return self.text[begin:]


def paragraphs(lines: Iterable[tuple[int, str]]) -> Iterator[Paragraph]:
    """Group numbered lines into paragraphs, leaving out code blocks and quoted blocks."""
    current = Paragraph()
    in_fence = False
    for number, line in lines:
        if _FENCE.match(line):
            in_fence = not in_fence
        elif not in_fence and line.strip() and not _EXEMPT_LINE.match(line):
            if _ITEM.match(line) and current.text:
                yield current
                current = Paragraph()
            current.append(number, line)
            continue
        if current.text:
            yield current
            current = Paragraph()
    if current.text:
        yield current


def python_prose(source: str) -> Iterator[Paragraph]:
    """Yield the paragraphs of all docstrings and comments."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            statement = node.body[0]
            assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            text = str(statement.value.value)
            yield from paragraphs(enumerate(text.split("\n"), statement.lineno))
    yield from paragraphs(_comment_lines(source))


def _comment_lines(source: str) -> Iterator[tuple[int, str]]:
    """Yield numbered comment lines, with an empty line after each block of comments."""
    previous = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(_DIRECTIVE):
            number = token.start[0]
            if number != previous + 1:
                yield previous, ""
            yield number, token.string.lstrip("#:").strip()
            previous = number


def markdown_prose(source: str) -> Iterator[Paragraph]:
    """Yield the paragraphs of a Markdown page."""
    visible = _HTML_COMMENT.sub(lambda match: "\n" * match[0].count("\n"), source)
    return paragraphs(enumerate(visible.split("\n"), 1))


def _masked(text: str) -> str:
    """Replace code and quotations with words of the same length, so that offsets still hold."""
    for exempt in (_CODE, _QUOTATION):
        text = exempt.sub(lambda match: "X" * len(match[0]), text)
    return text


def measure(path: Path, source: str) -> Tally:
    """Count the words and the hits of one file."""
    tally = Tally()
    prose = markdown_prose(source) if path.suffix == ".md" else python_prose(source)
    for paragraph in prose:
        text = _masked(paragraph.text)
        tally.words += len(_WORD.findall(text))
        for name, pattern in PATTERNS.items():
            for match in pattern.finditer(text):
                offset = match.start()
                sentence = paragraph.sentence_at(offset)
                tally.hits.append(Hit(path, paragraph.line_at(offset), name, sentence))
    return tally


def _files(root: Path, places: Iterable[Path]) -> Iterator[Path]:
    """Yield the checked files at `places`, relative to `root`."""
    for place in places:
        here = root / place
        candidates = sorted(here.rglob("*")) if here.is_dir() else [here]
        for path in candidates:
            relative = path.relative_to(root)
            generated = path.stem.endswith("_pb2") or {"_build", "__pycache__"} & set(path.parts)
            if path.suffix in SUFFIXES and not generated and relative != GLOSSARY:
                yield relative


def measure_folders(root: Path, places: Sequence[Path] = ()) -> dict[str, Tally]:
    """Measure each folder below `places`; a file given there counts as a folder of its own.

    Without `places`, measure the checked folders and the pages at the top level (folder ".").
    """
    if not places:
        pages = [path.relative_to(root) for path in root.glob("*.md")]
        places = [Path(name) for name in CHECKED_FOLDERS if (root / name).is_dir()] + sorted(pages)
        own = set()
    else:
        own = {place for place in places if (root / place).is_file()}
    folders: dict[str, Tally] = {}
    for path in _files(root, places):
        name = path if path in own else path.parent
        tally = folders.setdefault(name.as_posix(), Tally())
        found = measure(path, (root / path).read_text(encoding="utf-8"))
        tally.words += found.words
        tally.hits += found.hits
    return folders


def read_pending(root: Path) -> list[str]:
    """Read the folders that have not been rewritten yet, one a line."""
    try:
        lines = (root / PENDING).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def check(root: Path, places: Sequence[Path] = ()) -> list[str]:
    """Return one text for each fault; an empty list means that the check passes."""
    folders = measure_folders(root, places)
    pending = read_pending(root)
    faults = []
    for name, tally in sorted(folders.items()):
        if name not in pending and not tally.passes():
            rates = tally.rates()
            others = sum(rates.values()) - rates["what"]
            faults.append(
                f'{name}: {rates["what"]:.1f} "what" per 1,000 words (at most {CEILING_WHAT}), '
                f"{others:.1f} of the other patterns (at most {CEILING_OTHERS})"
            )
            faults += [f"  {hit}" for hit in tally.hits]
        elif name in pending and tally.passes():
            faults.append(f"{name}: passes the check; remove it from {PENDING}")
    if not places:
        faults += [
            f"{name}: is not a checked folder; remove it from {PENDING}"
            for name in pending
            if name not in folders
        ]
    return faults


def _print_rates(folders: dict[str, Tally]) -> None:
    print(f"{'words':>8}" + "".join(f"{name:>12}" for name in PATTERNS) + f"{'sum':>8}  folder")
    for name, tally in sorted(folders.items(), key=lambda item: -item[1].words):
        rates = tally.rates()
        columns = "".join(f"{rate:12.1f}" for rate in rates.values())
        print(f"{tally.words:8,}{columns}{sum(rates.values()):8.1f}  {name}")


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.prose",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="*", type=Path, help="folders or files; default: everything")
    parser.add_argument("--by-folder", action="store_true", help="print the rates of each folder")
    parser.add_argument("--failing", action="store_true", help="print folders above the ceilings")
    parser.add_argument(
        "--show",
        nargs="?",
        const="all",
        choices=["all", *PATTERNS],
        help="print each hit, of one pattern or of all",
    )
    options = parser.parse_args(arguments)
    places = [_relative(path, root) for path in options.paths]
    if missing := [place for place in places if not (root / place).exists()]:
        parser.error(f"there is no {missing[0]} in {root}")
    if options.by_folder or options.failing or options.show:
        folders = measure_folders(root, places)
        if options.by_folder:
            _print_rates(folders)
        for name, tally in sorted(folders.items()):
            if options.failing and not tally.passes():
                print(name)
            for hit in tally.hits:
                if options.show in ("all", hit.pattern):
                    print(hit)
        return 0
    faults = check(root, places)
    print("\n".join(faults) if faults else "The prose check passes.")
    return 1 if faults else 0


def _relative(path: Path, root: Path) -> Path:
    """Return `path` relative to `root`; a relative path may start at `root` or here."""
    if path.is_absolute() or not (root / path).exists():
        path = path.resolve()
        return path.relative_to(root) if path.is_relative_to(root) else path
    return path


if __name__ == "__main__":
    sys.exit(main())
