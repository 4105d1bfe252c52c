"""Credentials for a broker with authentication: a CA, certificates, tokens and its settings.

`Secured` is a running broker. All files are created in a folder that the caller gives and are valid
for one day. None of them is a real secret. Needs `openssl` on the path.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.admin import Admin

OPERATOR = "operator"
"""The role of whoever may do everything; also the common name in its certificate."""

PASSWORD = "open sesame"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files for a broker and its clients.

    Attributes:
        folder: Contains `ca.pem`, and a `.pem` and a `.key` for `broker`, `operator` and
            `stranger`. The stranger's certificate is signed by `other-ca.pem`, a CA that the broker
            does not know.
        signing_key: Key that signs the tokens.
    """

    folder: Path
    signing_key: bytes

    def file(self, name: str) -> str:
        """Return the full path of a file."""
        return str(self.folder / name)

    def token(self, role: str = OPERATOR, lifetime_s: float | None = None) -> str:
        """Return a token for a role. It expires after `lifetime_s` seconds, or never."""
        claims: dict[str, object] = {"sub": role}
        if lifetime_s is not None:
            claims["exp"] = int(time.time() + lifetime_s)
        parts = [_base64({"alg": "HS256", "typ": "JWT"}), _base64(claims)]
        signature = hmac.digest(self.signing_key, ".".join(parts).encode(), hashlib.sha256)
        return ".".join([*parts, _url_safe(signature)])

    def settings(self, tls_port: int) -> dict[str, object]:
        """Return the settings of a broker that requires a token, a certificate or a password, on
        TLS too.
        """
        providers = ("Token", "Tls", "Basic")
        key = base64.b64encode(self.signing_key).decode()
        return {
            "authenticationEnabled": True,
            "authenticationProviders": ",".join(
                f"org.apache.pulsar.broker.authentication.AuthenticationProvider{name}"
                for name in providers
            ),
            "authorizationEnabled": True,
            "superUserRoles": OPERATOR,
            "tokenSecretKey": f"data:;base64,{key}",
            "basicAuthConf": self.file("passwords"),
            "brokerServicePortTls": tls_port,
            "tlsCertificateFilePath": self.file("broker.pem"),
            "tlsKeyFilePath": self.file("broker.key"),
            "tlsTrustCertsFilePath": self.file("ca.pem"),
            "brokerClientAuthenticationPlugin": (
                "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            ),
            "brokerClientAuthenticationParameters": f"token:{self.token()}",
        }


@dataclass(frozen=True, slots=True)
class Secured:
    """A running broker. It requires authentication at every address."""

    credentials: Credentials
    tls_url: str
    plain_url: str
    web_url: str
    admin: Admin

    def file(self, name: str) -> str:
        return self.credentials.file(name)

    def write_file(self, name: str, text: str) -> str:
        path = self.credentials.folder / name
        path.write_text(text)
        return str(path)

    @property
    def tls_options(self) -> dict[str, Any]:
        return {"url": self.tls_url, "tls_trust_certs_file": self.file("ca.pem")}

    @property
    def with_token(self) -> dict[str, Any]:
        return {
            **self.tls_options,
            "token_file": self.write_file("token", self.credentials.token()),
        }

    @property
    def with_certificate(self) -> dict[str, Any]:
        return {
            **self.tls_options,
            "tls_certificate_file": self.file(f"{OPERATOR}.pem"),
            "tls_private_key_file": self.file(f"{OPERATOR}.key"),
        }


def make_credentials(folder: Path) -> Credentials:
    """Create all files."""
    for ca in ("ca", "other-ca"):
        _certificate(folder, ca, ca)
    _certificate(folder, "broker", "broker", "ca", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    _certificate(folder, "misnamed", "misnamed", "ca", "subjectAltName=DNS:elsewhere.example")
    _certificate(folder, OPERATOR, OPERATOR, "ca")
    _certificate(folder, "stranger", OPERATOR, "other-ca")
    hashed = _openssl("passwd", "-apr1", PASSWORD).strip()
    (folder / "passwords").write_text(f"{OPERATOR}:{hashed}\n")
    return Credentials(folder, secrets.token_bytes(32))


def _certificate(folder: Path, name: str, common: str, signer: str = "", extra: str = "") -> None:
    key, certificate = str(folder / f"{name}.key"), str(folder / f"{name}.pem")
    _openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", key)
    arguments = [
        "req",
        "-x509",
        "-new",
        "-key",
        key,
        "-out",
        certificate,
        "-days",
        "1",
        "-subj",
        f"/CN={common}",
    ]
    if signer:
        arguments += ["-CA", str(folder / f"{signer}.pem"), "-CAkey", str(folder / f"{signer}.key")]
        arguments += ["-addext", "basicConstraints=critical,CA:FALSE"]
    if extra:
        arguments += ["-addext", extra]
    _openssl(*arguments)


def _openssl(*arguments: str) -> str:
    return subprocess.run(
        ["openssl", *arguments], check=True, capture_output=True, text=True
    ).stdout


def _base64(claims: dict[str, Any]) -> str:
    return _url_safe(json.dumps(claims).encode())


def _url_safe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
