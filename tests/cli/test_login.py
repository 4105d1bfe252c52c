"""Logins of commands: an error is reported before anything connects, and no secret is shown."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_encore import cli
from pulsar_encore.cli.login import Login, access
from pulsar_encore.errors import ConfigurationError

SECRET = "s3cret"
TLS = "pulsar+ssl://broker.example"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PULSAR_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a certificate with its key, another key, and the first key encrypted."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("one", "two"):
        words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj".split()
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        _openssl(folder, *words, f"/CN={name}", *files)
    words = f"rsa -aes128 -passout pass:{SECRET} -in one.key -out locked.key".split()
    _openssl(folder, *words)
    (folder / "both.pem").write_text(
        (folder / "one.pem").read_text() + (folder / "one.key").read_text()
    )
    return folder


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def test_the_error_for_an_unreadable_file_names_its_option_and_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No server listens at the URL, so an error that is not about the file would say so."""
    missing = str(tmp_path / "missing")
    for option, variable in (
        ("--token-file", "PULSAR_TOKEN_FILE"),
        ("--basic-file", "PULSAR_BASIC_FILE"),
        ("--tls-trust-certs-file", "PULSAR_TLS_TRUST_CERTS_FILE"),
        ("--tls-certificate-file", "PULSAR_TLS_CERTIFICATE_FILE"),
        ("--tls-private-key-file", "PULSAR_TLS_PRIVATE_KEY_FILE"),
    ):
        for command in (["dlq", "ls", "t"], ["dlq", "show", "t", "x"], ["demo"]):
            assert cli.main([*command, "--url", "pulsar+ssl://127.0.0.1:1", option, missing]) == 2
            out, problems = capsys.readouterr()
            assert out == ""
            expected = f"{option} ({variable}): cannot read {missing!r}: No such file or directory"
            assert problems == f"pulsar-encore: {expected}\n"


@pytest.mark.parametrize(
    ("field", "content", "says"),
    [
        ("token_file", b" \n", "it contains no token"),
        ("token_file", f"{SECRET} {SECRET}".encode(), "more than a token"),
        ("token_file", SECRET.encode() + b"\xff", "is not text"),
        ("basic_file", SECRET.encode(), "must contain user:password"),
        ("basic_file", f":{SECRET}".encode(), "must contain user:password"),
        ("basic_file", SECRET.encode() + b"\xff", "is not text"),
        ("tls_trust_certs_file", SECRET.encode(), "contains no certificates"),
        ("tls_certificate_file", SECRET.encode(), "cannot be used with the key"),
    ],
)
def test_an_unusable_credential_is_named_and_not_shown(
    tmp_path: Path, field: str, content: bytes, says: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    given: dict[str, Any] = {field: str(path)}
    with pytest.raises(ConfigurationError, match=says) as caught:
        access(TLS, Login(**given))
    assert f"--{field.replace('_', '-')} (PULSAR_{field.upper()})" in str(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error}{error.args}"
        error = error.__cause__


@pytest.mark.parametrize("text", ["", " ", f"a {SECRET}"])
def test_the_error_for_a_variable_without_a_token_names_it(text: str) -> None:
    if not text:
        assert access(TLS, Login(), {"PULSAR_TOKEN": text}).method == "none"
        return
    with pytest.raises(ConfigurationError, match="PULSAR_TOKEN") as caught:
        access(TLS, Login(), {"PULSAR_TOKEN": text})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"pulsar://user:{SECRET}@host", "contains an @"),
        ("http://host:8080", "must be the service URL"),
        ("host:6650", "must be the service URL"),
        ("pulsar+ssl://", "must be the service URL"),
        ("pulsar://host:0", "from 1 to 65535"),
        ("pulsar://host:65536", "from 1 to 65535"),
        ("pulsar://host:x", "from 1 to 65535"),
        ("pulsar://a,,b", "must be a host"),
    ],
)
def test_an_invalid_url_is_an_error_that_names_it(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        access(url, Login())
    assert "--url (PULSAR_URL)" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("", (("localhost", 6650),)),  # the variable is set to an empty string
        ("pulsar://a,b:7/", (("a", 6650), ("b", 7))),
        ("pulsar+ssl://[::1],[::2]:7", (("::1", 6651), ("::2", 7))),
    ],
)
def test_a_url_is_split_into_hosts(url: str, hosts: tuple[tuple[str, int], ...]) -> None:
    assert access(url, Login()).hosts == hosts


def test_the_error_for_conflicting_options_names_them(certificates: Path, tmp_path: Path) -> None:
    one, key = str(certificates / "one.pem"), str(certificates / "one.key")
    locked, other = str(certificates / "locked.key"), str(certificates / "two.key")
    pair, token = tmp_path / "pair", tmp_path / "token"
    pair.write_text(f"user:{SECRET}")
    token.write_text(SECRET)
    given = Login(tls_certificate_file=one)
    wrong: list[tuple[str, Login, dict[str, str], str]] = [
        ("pulsar://h", Login(tls_trust_certs_file=one), {}, "is for TLS"),
        ("pulsar://h", replace(given, tls_private_key_file=key), {}, "is for TLS"),
        (TLS, Login(tls_private_key_file=key), {}, "--tls-certificate-file"),
        (TLS, given, {}, "cannot be used with the key"),
        (TLS, replace(given, tls_private_key_file=other), {}, "belong together"),
        (TLS, replace(given, tls_private_key_file=locked), {}, "the key have no password"),
        (TLS, Login(basic_file=str(pair), token_file=str(token)), {}, "one of --token-file"),
        (TLS, Login(basic_file=str(pair)), {"PULSAR_TOKEN": SECRET}, "unset PULSAR_TOKEN"),
    ]
    for url, login, environment, says in wrong:
        with pytest.raises(ConfigurationError, match=says) as caught:
            access(url, login, environment)
        assert SECRET not in str(caught.value)


def test_the_login_method_follows_from_the_options(certificates: Path, tmp_path: Path) -> None:
    one, key = str(certificates / "one.pem"), str(certificates / "one.key")
    pair = tmp_path / "pair"
    pair.write_text(f"user:{SECRET}:x\n")
    certificate = Login(tls_certificate_file=one, tls_private_key_file=key)
    token = {"PULSAR_TOKEN": SECRET}
    for login, environment, method, secret in (
        (Login(), {}, "none", ""),
        (Login(), token, "token", SECRET),
        (Login(basic_file=str(pair)), {}, "basic", f"user:{SECRET}:x"),
        (certificate, {}, "tls", ""),
        # both: the certificate for TLS, the token for the login
        (certificate, token, "token", SECRET),
        (Login(tls_certificate_file=str(certificates / "both.pem")), {}, "tls", ""),
    ):
        made = access(TLS, login, environment)
        assert (made.method, made.secret()) == (method, secret)
        assert SECRET not in repr(made)
    both = access(TLS, certificate, token).keywords
    assert (both["tls_certificate_file_path"], both["tls_private_key_file_path"]) == (one, key)
    assert both["tls_validate_hostname"] is True
    lax = access(TLS, Login(tls_validate_hostname=False)).keywords
    assert lax["tls_validate_hostname"] is False


def _replaced(path: Path) -> None:
    path.write_text("second\n")


@pytest.mark.parametrize(
    ("change", "then"),
    [
        (_replaced, "second"),
        (Path.unlink, "first"),  # missing for a moment while the file is replaced
        (lambda path: path.write_text(""), "first"),
    ],
)
def test_a_token_file_is_read_for_each_connection(
    tmp_path: Path, change: Callable[[Path], object], then: str
) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    made = access(TLS, Login(token_file=str(path)))
    assert made.secret() == "first"
    change(path)
    assert made.secret() == then


def test_a_token_can_come_from_a_pipe_that_is_read_once() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"first\n")
        os.close(writing)
        made = access(TLS, Login(token_file=f"/dev/fd/{reading}"))
        assert [made.secret(), made.secret()] == ["first", "first"]
    finally:
        os.close(reading)


def test_help_names_every_variable_and_no_option_takes_a_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for command in ("ls", "show", "replay"):
        assert cli.main(["dlq", command, "--help"]) == 0
        out = capsys.readouterr().out
        for name in (
            *("PULSAR_URL", "PULSAR_TOKEN_FILE", "PULSAR_TOKEN ", "PULSAR_BASIC_FILE"),
            *("PULSAR_TLS_TRUST_CERTS_FILE", "PULSAR_TLS_CERTIFICATE_FILE"),
            *("PULSAR_TLS_PRIVATE_KEY_FILE", "PULSAR_TLS_VALIDATE_HOSTNAME"),
        ):
            assert name in out
        assert "--token " not in out
        assert "--password" not in out
