"""The folder of jars: resolved by Maven once, kept while complete, with named failures.

A replacement for `mvn` counts its runs. The other tests of this folder use the real one.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness.pulsar_server import StandaloneError, resolve_jars

FAKE_MAVEN = """#!{python}
import pathlib, sys, time
here = pathlib.Path(__file__).parent
with (here / "runs").open("a") as runs:
    runs.write("x")
if (here / "broken").exists():
    print("[ERROR] repository unreachable")
    sys.exit(1)
time.sleep(0.05)
out = next(a.partition("=")[2] for a in sys.argv if a.startswith("-DoutputDirectory="))
pathlib.Path(out).mkdir()
for name in ("pulsar-broker-0.jar", "other.jar"):
    (pathlib.Path(out) / name).write_text(name)
"""


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a replacement for Maven, the only folder on PATH. Its file `runs` counts the
    calls.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "mvn"
    program.write_text(FAKE_MAVEN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def runs(maven: Path) -> int:
    return len((maven / "runs").read_text())


def test_concurrent_calls_resolve_the_jars_once(maven: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(resolve_jars, [tmp_path / "cache"] * 2)
    assert first == second == resolve_jars(tmp_path / "cache")
    assert sorted(jar.name for jar in first.iterdir()) == ["other.jar", "pulsar-broker-0.jar"]
    assert runs(maven) == 1


def test_an_incomplete_folder_is_resolved_again(maven: Path, tmp_path: Path) -> None:
    jars = resolve_jars(tmp_path)
    (jars / "other.jar").unlink()
    assert (resolve_jars(tmp_path) / "other.jar").exists()
    (jars / "other.jar").write_text("cut")
    resolve_jars(tmp_path)
    assert (jars / "other.jar").read_text() == "other.jar"
    assert runs(maven) == 3


def test_a_maven_failure_is_shown_and_leaves_no_folder(maven: Path, tmp_path: Path) -> None:
    (maven / "broken").touch()
    with pytest.raises(StandaloneError, match=r"repository unreachable"):
        resolve_jars(tmp_path / "cache")
    (maven / "broken").unlink()
    assert resolve_jars(tmp_path / "cache").is_dir()


def test_without_maven_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StandaloneError, match=r"install Maven"):
        resolve_jars(tmp_path / "cache")
