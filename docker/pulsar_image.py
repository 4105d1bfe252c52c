"""Owns the image that a Pulsar container starts from: Apache's, or ours where no registry answers.

    python docker/pulsar_image.py     # build ours, unless it is built already

Invariant: our image carries a digest of everything it is made of; one with another digest is built
again, and so is a base, so that a change of a setting or of a version can't go unnoticed. A file
lock keeps two runs from building at once. Standard library only. Refuses to install debootstrap,
Java or Maven: it says what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from container_engine import Engine, EngineError, find_engine
from pulsar_jars import (
    DEFAULT_CACHE,
    POM,
    PULSAR_VERSION,
    MissingToolError,
    StandaloneError,
    resolve_jars,
)

HERE = Path(__file__).resolve().parent
APACHE_IMAGE = f"apachepulsar/pulsar:{PULSAR_VERSION}"
OUR_IMAGE = f"localhost/pulsar-encore/pulsar:{PULSAR_VERSION}"

# curl is for the health check of compose.yaml, as in Apache's image.
BASE_SUITE = "bookworm"
BASE_PACKAGES = "openjdk-17-jre-headless,ca-certificates,curl"
BASE_LEFT_OUT = ("var/cache/apt", "var/lib/apt/lists", "usr/share/locale", "usr/share/man")
COPIED = ("Containerfile", "jvm.options", "pulsar.sh", "standalone.conf", "start.sh")

LABEL = "pulsar-encore.digest"
ASK_TIMEOUT = 60.0
PULL_TIMEOUT = 600.0
BASE_TIMEOUT = 600.0
BUILD_TIMEOUT = 300.0

Say = Callable[[str], object]


class NoImageError(StandaloneError):
    """An engine answers, but no image can be had; the message, one line, says why."""


def available_image(engine: Engine, say: Say, cache: Path = DEFAULT_CACHE) -> str:
    """Name of an image that the engine has: what is there, else pulled, else built.

    Args:
        engine: Asked for images.
        say: Takes a line for the user before anything that lasts.
        cache: Of the jars and the base.

    Raises:
        NoImageError: There is none, it can't be pulled, and it can't be built.
    """
    named = os.environ.get("PULSAR_IMAGE")
    if named:
        if not _has(engine, named):
            say(f"{engine.name} pulls {named}")
            with _no_image(f"PULSAR_IMAGE names {named}"):
                engine.call("pull", named, timeout=PULL_TIMEOUT)
        return named
    if _has(engine, APACHE_IMAGE):
        return APACHE_IMAGE
    if _is_ours(engine):
        return OUR_IMAGE
    say(f"{engine.name} pulls {APACHE_IMAGE}")
    try:
        engine.call("pull", APACHE_IMAGE, timeout=PULL_TIMEOUT)
    except EngineError as refused:
        with _no_image(f"{refused}; and ours can't be built"):
            return build_image(engine, say, cache)
    return APACHE_IMAGE


def build_image(engine: Engine, say: Say, cache: Path = DEFAULT_CACHE) -> str:
    """Name of our image, which is built unless the engine has it as it would be now.

    Args:
        engine: Builds and keeps it.
        say: Takes a line for the user before anything that lasts.
        cache: Kept between runs: the jars, and the root file system below the image.

    Raises:
        MissingToolError: debootstrap, root's rights, Java or Maven are missing.
        StandaloneError: A part could not be made; the message has its last lines.
    """
    if _is_ours(engine):
        return OUR_IMAGE
    jars = resolve_jars(cache)
    cache = cache.resolve()
    with (cache / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_ours(engine):  # else another run built it while this one waited
            base = _base(cache, say)
            say(f"{engine.name} builds {OUR_IMAGE}, half a minute")
            with tempfile.TemporaryDirectory(dir=cache, prefix="image-") as folder:
                context = Path(folder)
                for name in COPIED:
                    shutil.copy(HERE / name, context / name)
                os.link(base, context / "base.tar")
                shutil.copytree(jars, context / "jars", copy_function=os.link)
                engine.call(
                    "build",
                    f"--file={context / 'Containerfile'}",
                    f"--label={LABEL}={_digest()}",
                    f"--tag={OUR_IMAGE}",
                    str(context),
                    timeout=BUILD_TIMEOUT,
                )
            with contextlib.suppress(EngineError):  # those that this one has taken the name of
                ours = f"--filter=label={LABEL}"
                engine.call("image", "prune", "--force", ours, timeout=ASK_TIMEOUT)
    return OUR_IMAGE


def _base(cache: Path, say: Say) -> Path:
    """A Debian root file system with Java, as one tar file."""
    made_of = f"{BASE_SUITE} {BASE_PACKAGES} {BASE_LEFT_OUT}"
    base = cache / f"base-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}.tar"
    if base.exists():
        return base
    missing = [tool for tool in ("debootstrap", "unshare", "tar") if shutil.which(tool) is None]
    if missing:
        raise MissingToolError(f"{', '.join(missing)} not found: install it to build {OUR_IMAGE}")
    if os.geteuid() != 0:
        raise MissingToolError(f"debootstrap needs root's rights to build {OUR_IMAGE}")
    say("debootstrap makes the base of the image, about a minute")
    with tempfile.TemporaryDirectory(dir=cache, prefix="base-") as folder:
        root, partial = Path(folder, "root"), Path(folder, "base.tar")
        # In namespaces of its own: its processes and what it mounts below the folder are gone when
        # it is, however it ends, so that removing the folder can't reach through a mount.
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        what = ["--variant=minbase", f"--include={BASE_PACKAGES}", BASE_SUITE, str(root)]
        _run([*apart, "debootstrap", *what])
        left_out = [f"--exclude=./{path}/*" for path in BASE_LEFT_OUT]
        _run(["tar", "-C", str(root), "--numeric-owner", *left_out, "-cf", str(partial), "."])
        for old in cache.glob("base-*.tar"):
            old.unlink()
        partial.rename(base)
    return base


def _digest() -> str:
    parts = [f"{PULSAR_VERSION} {BASE_SUITE} {BASE_PACKAGES} {BASE_LEFT_OUT}".encode()]
    parts += [path.read_bytes() for path in (POM, *(HERE / name for name in COPIED))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _has(engine: Engine, image: str) -> bool:
    try:
        engine.call("image", "inspect", image, timeout=ASK_TIMEOUT)
    except EngineError:
        return False
    return True


def _is_ours(engine: Engine) -> bool:
    shown = f'--format={{{{index .Config.Labels "{LABEL}"}}}}'
    try:
        found = engine.call("image", "inspect", shown, OUR_IMAGE, timeout=ASK_TIMEOUT)
    except EngineError:
        return False
    return found == _digest()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BASE_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise StandaloneError(f"{command[0]} did not finish: {e}") from e
    if done.returncode != 0:
        words = " ".join(done.stdout.split())[-500:]
        raise StandaloneError(f"{' '.join(command)} failed ({done.returncode}): {words}")


@contextlib.contextmanager
def _no_image(circumstance: str) -> Iterator[None]:
    try:
        yield
    except StandaloneError as e:
        raise NoImageError(" ".join(f"{circumstance}: {e}".split())) from e


def main() -> int:
    """Build our image; returns the exit code."""
    argparse.ArgumentParser(
        description="Build the project's own image of Pulsar and print its name; does nothing when "
        "it is there already. As root, on Debian, with podman or docker and debootstrap."
    ).parse_args()

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    began = time.monotonic()
    engine = find_engine()
    if engine is None:
        say("error: no container engine answers (`docker info`, `podman info`): install one")
        return 1
    try:
        image = build_image(engine, say)
    except StandaloneError as e:
        say(f"error: {e}")
        return 1
    say(f"ready after {time.monotonic() - began:.1f} s")
    sys.stdout.write(f"{image}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
