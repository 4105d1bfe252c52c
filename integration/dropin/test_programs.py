"""Programs in the style of users print the same with either package.

Each is a file in `programs/` and runs as a process of its own on a real broker: once with the stock
client, and once over each transport with only its import changed. They run concurrently, because
they mostly wait.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness.pulsar_server import Server

from .program_runner import PROGRAMS, TRANSPORTS, Run, difference, our_text, run, stock_text

#: Programs for features that the stock client does not have, and their output. In the stock client
#: a forked child that uses its parent's consumer hangs, and objects of one loop can be used from
#: any loop.
OURS_ONLY = {
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
BOTH = sorted({path.name for path in PROGRAMS.glob("*.py")} - OURS_ONLY.keys())
AT_ONCE = 6

Runs = dict[tuple[str, str], "Future[Run]"]
"""By a program's name, and by what it runs with: "stock", or ours over a transport."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a key pair, for the program that encrypts."""
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
    """The runs of each program that a selected test needs."""
    requested = {
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    environment = {
        "PULSAR_URL": pulsar.service_url,
        "PULSAR_ADMIN_URL": pulsar.admin_url,
        "KEYS": str(keys),
        # Options of this test run must not reach the programs.
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "PYTEST_ADDOPTS": "",
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started: Runs = {}
        for name in sorted(requested):
            texts = {f"ours over {transport}": our_text(name) for transport in TRANSPORTS}
            if name not in OURS_ONLY:
                texts["stock"] = stock_text(name)
            for package, text in texts.items():
                # In a folder of its own, because a program can import the files beside it.
                path = tmp_path_factory.mktemp("program") / name
                run_environment = environment | {
                    "PULSAR_ENCORE_TRANSPORT": package.rpartition(" ")[2]
                }
                started[name, package] = pool.submit(run, text, path, run_environment)
        yield started
        for each in started.values():
            each.cancel()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", BOTH)
def test_a_program_prints_the_same_with_either_package(
    name: str, transport: str, runs: Runs
) -> None:
    stock, ours = runs[name, "stock"].result(), runs[name, f"ours over {transport}"].result()
    assert stock.output, f"stock: {stock}\nours: {ours}"
    # The stock client may abort or crash at the end of a program. This package never may.
    same = ours.code == 0 and ours.output == stock.output and (stock.code or 0) <= 0
    assert same, f"{difference(stock.output, ours.output)}\nstock: {stock}\nours: {ours}"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", sorted(OURS_ONLY))
def test_a_program_that_only_this_package_supports(name: str, transport: str, runs: Runs) -> None:
    ours = runs[name, f"ours over {transport}"].result()
    assert ours.code == 0 and ours.output == OURS_ONLY[name], str(ours)


@pytest.mark.parametrize("name", BOTH)
def test_only_imports_and_asyncio_keywords_are_changed(name: str) -> None:
    stock, ours = stock_text(name).splitlines(), our_text(name).splitlines()
    for stock_line, our_line in zip(stock, ours, strict=True):
        if stock_line != our_line:
            assert _without_asyncio(our_line) == stock_line or "import" in our_line, (
                stock_line,
                our_line,
            )
    assert "pulsar_encore" not in "\n".join(stock)


def _without_asyncio(line: str) -> str:
    line = line.replace("await asyncio.sleep(", "time.sleep(")
    line = line.replace("asyncio.run(main())", "main()")
    return line.replace("await ", "").replace("async def", "def")
