"""Owns the folder of jars that a real Pulsar broker runs from, resolved by Maven and kept.

Invariant: a folder with a marker that fits its contents is complete; anything else is resolved
again, into a folder beside it that takes its place only when Maven has succeeded. A file lock
keeps two runs from resolving at once. Standard library only. Refuses to install Java or Maven:
it says what is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

PULSAR_VERSION = "4.2.4"
MIN_JAVA = 17
POM = Path(__file__).resolve().with_name("pom.xml")
DEFAULT_CACHE = POM.parent.parent / ".pulsar"

# A cold resolve is a minute on a good line (242 MB); ten are for a bad one.
RESOLVE_TIMEOUT = 600.0


class StandaloneError(RuntimeError):
    """The real broker could not be had, or did not start; the message says what to do."""


class MissingToolError(StandaloneError):
    """Java or Maven is missing or too old."""


def find_java() -> str:
    """Path of a `java` that is new enough: the one in JAVA_HOME, else the first on PATH.

    Raises:
        MissingToolError: There is none, or it is older than Java 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else None
    java = java or shutil.which("java")
    install = f"install a Java {MIN_JAVA} (or later) runtime, or set JAVA_HOME to one"
    if java is None:
        raise MissingToolError(f"Pulsar {PULSAR_VERSION} needs Java and none was found: {install}")
    shown = _run([java, "-version"], timeout=30)
    match = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    if match is None or int(match.group(1)) < MIN_JAVA:
        found = match.group(1) if match else "unknown"
        raise MissingToolError(
            f"Pulsar {PULSAR_VERSION} needs Java {MIN_JAVA}, {java} is {found}: {install}"
        )
    return java


def resolve_jars(cache: Path = DEFAULT_CACHE) -> Path:
    """Folder with the broker's class path; asks Maven for it unless it is already complete.

    Args:
        cache: Kept between runs; may be shared by any number of them.

    Raises:
        MissingToolError: The jars are not there and Maven is not installed.
        StandaloneError: Maven failed; the message ends with its last lines.
    """
    folder = cache.resolve() / PULSAR_VERSION
    if _is_complete(folder):
        return folder / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_complete(folder):  # else another run resolved it while this one waited
            _resolve(folder)
    return folder / "jars"


def _resolve(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingToolError(
            f"the jars of Pulsar {PULSAR_VERSION} are not in {folder} and Maven was not found to "
            "resolve them: install Maven 3.8 or later (command `mvn`), or name a folder that has "
            "them with --classpath-dir"
        )
    partial, jars = folder / "jars.partial", folder / "jars"
    for old in (partial, jars):
        shutil.rmtree(old, ignore_errors=True)
    (folder / "complete.json").unlink(missing_ok=True)
    done = _run(
        [
            maven,
            "--batch-mode",
            "--quiet",
            f"--file={POM}",
            f"-Dpulsar.version={PULSAR_VERSION}",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={partial}",
            "dependency:copy-dependencies",
        ],
        timeout=RESOLVE_TIMEOUT,
    )
    if done.returncode != 0 or not any(partial.glob("pulsar-broker-*.jar")):
        shown = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise StandaloneError(
            f"Maven could not resolve Pulsar {PULSAR_VERSION} (exit {done.returncode}); check "
            f"that it reaches a repository (`mvn -f docker/pom.xml dependency:resolve`):\n{shown}"
        )
    partial.rename(jars)
    marker = folder / "complete.json.partial"
    marker.write_text(json.dumps(_fingerprint(folder)))
    marker.rename(folder / "complete.json")


def _is_complete(folder: Path) -> bool:
    try:
        marker = json.loads((folder / "complete.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(marker == _fingerprint(folder))


def _fingerprint(folder: Path) -> dict[str, object]:
    """What must not have changed since the resolve: the pom, and the jars' number and size."""
    sizes = [jar.stat().st_size for jar in (folder / "jars").glob("*.jar")]
    return {
        "version": PULSAR_VERSION,
        "pom": hashlib.sha256(POM.read_bytes()).hexdigest(),
        "jars": len(sizes),
        "bytes": sum(sizes),
    }


def _run(command: list[str], *, timeout: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise StandaloneError(f"{command[0]} did not finish: {e}") from e
