"""Programs in the shapes that users write say the same with either package.

Each is a file in `programs/`, run as a process of its own on a real broker: once with stock, once
over each transport with only its import changed. All of them run side by side, since they mostly
wait.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.pulsar_server import Server

from .program_runner import PROGRAMS, TRANSPORTS, Run, difference, of_ours, of_stock, run

#: Programs about what stock cannot do, and what they say: the child of a fork that touches its
#: parent's consumer hangs there, and what belongs to another loop is used from any.
OURS_ALONE = {
    "inherited_by_fork.py": """\
receive ForkedError True
acknowledge ForkedError True
send ForkedError True
read_next ForkedError True
create_producer ForkedError True
close ForkedError True
own client works True
exit code 0
the parent goes on: by a client of its own
""",
    "other_loop.py": """\
send (True, True)
flush (True, True)
receive (True, True)
acknowledge (True, True)
negative_acknowledge (True, True)
seek (True, True)
read_next (True, True)
at home: (b'second', [b'first', b'second'])
made here, awaited there: None
""",
}
BOTH = sorted({path.name for path in PROGRAMS.glob("*.py")} - OURS_ALONE.keys())
AT_ONCE = 6

Runs = dict[tuple[str, str], "Future[Run]"]
"""By a program's name, and by what it runs with: "stock", or ours over a transport."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pair of keys, for the program that encrypts."""
    folder = tmp_path_factory.mktemp("keys")
    private, public = str(folder / "private.pem"), str(folder / "public.pem")
    for command in (
        ["openssl", "genrsa", "-out", private, "2048"],
        ["openssl", "rsa", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    pulsar: Server,
    keys: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Runs]:
    """The runs of each program that a test of this run asks for."""
    asked = {
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    environment = {
        "PULSAR_URL": pulsar.service_url,
        "PULSAR_ADMIN_URL": pulsar.admin_url,
        "KEYS": str(keys),
        # A program knows nothing of the suite that runs it.
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "PYTEST_ADDOPTS": "",
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started: Runs = {}
        for name in sorted(asked):
            texts = {f"ours over {transport}": of_ours(name) for transport in TRANSPORTS}
            if name not in OURS_ALONE:
                texts["stock"] = of_stock(name)
            for which, text in texts.items():
                # In a folder of its own: what lies beside a program can be imported by it.
                path = tmp_path_factory.mktemp("program") / name
                chosen = environment | {"PULSAR_ENCORE_TRANSPORT": which.rpartition(" ")[2]}
                started[name, which] = pool.submit(run, text, path, chosen)
        yield started
        for each in started.values():
            each.cancel()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", BOTH)
def test_a_program_says_the_same_with_either_package(name: str, transport: str, runs: Runs) -> None:
    stock, ours = runs[name, "stock"].result(), runs[name, f"ours over {transport}"].result()
    assert stock.output, f"stock: {stock}\nours: {ours}"
    # Stock may abort or crash once the program is at its end; ours never.
    same = ours.code == 0 and ours.output == stock.output and (stock.code or 0) <= 0
    assert same, f"{difference(stock.output, ours.output)}\nstock: {stock}\nours: {ours}"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", sorted(OURS_ALONE))
def test_a_program_that_stock_cannot_run(name: str, transport: str, runs: Runs) -> None:
    ours = runs[name, f"ours over {transport}"].result()
    assert ours.code == 0 and ours.output == OURS_ALONE[name], str(ours)


@pytest.mark.parametrize("name", BOTH)
def test_only_imports_and_the_words_of_asyncio_are_changed(name: str) -> None:
    stock, ours = of_stock(name).splitlines(), of_ours(name).splitlines()
    for theirs, own in zip(stock, ours, strict=True):
        if theirs != own:
            assert _without_asyncio(own) == theirs or "import" in own, (theirs, own)
    assert "pulsar_encore" not in "\n".join(stock)


def _without_asyncio(line: str) -> str:
    line = line.replace("await asyncio.sleep(", "time.sleep(")
    line = line.replace("asyncio.run(main())", "main()")
    return line.replace("await ", "").replace("async def", "def")
