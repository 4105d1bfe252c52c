"""How client options configure the native transport, and which options it does not support."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pulsar_encore
from pulsar_encore import (
    AuthenticationAthenz,
    AuthenticationBasic,
    AuthenticationTLS,
    AuthenticationToken,
    AutoClusterFailover,
    ServiceInfo,
    ServiceInfoProvider,
)
from pulsar_encore.errors import ConfigurationError, NotSupportedError
from pulsar_encore.options import ClientOptions
from pulsar_encore.transport.native import service_options as native
from pulsar_encore.transport.native.clusters import Failover, OneCluster, Provided
from pulsar_encore.transport.native.connection.cluster_service import Anonymous
from pulsar_encore.transport.native.service_options import of_options, unsupported

URL = "pulsar://h"


def test_timeouts_and_limits_come_from_the_client_options() -> None:
    clusters, settings = of_options(
        ClientOptions(
            service_url="pulsar+ssl://one,two:7",
            operation_timeout_seconds=7,
            connection_timeout_ms=1500,
            listener_name="outside",
            concurrent_lookup_requests=12,
            io_threads=4,
        )
    )
    assert isinstance(clusters, OneCluster)
    service = clusters.initial_service()
    assert str(service) == "pulsar+ssl://one:6651,two:7"
    assert service.secure and not service.web
    assert isinstance(service.credentials, Anonymous)
    assert settings.operation_timeout_s == 7
    assert settings.connection_timeout_s == 1.5
    assert settings.listener_name == "outside"
    assert settings.lookups == 12


async def test_credentials_come_from_the_clients_authentication() -> None:
    token = AuthenticationToken("t")
    clusters, _ = of_options(ClientOptions(service_url=URL, authentication=token))
    assert clusters.initial_service().credentials is token
    assert await clusters.initial_service().credentials.data() == b"t"


def test_host_names_in_certificates_are_verified_unless_verification_is_off() -> None:
    by_default, _ = of_options(ClientOptions(service_url=URL))
    assert by_default.initial_service().tls.context().check_hostname
    insecure, _ = of_options(ClientOptions(service_url=URL, tls_allow_insecure_connection=True))
    assert not insecure.initial_service().tls.context().check_hostname


def test_certificates_of_the_authentication_override_those_of_the_client(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("no certificate")
    paths = {name: str(tmp_path / name) for name in ("a", "b")}
    with_both, _ = of_options(
        ClientOptions(
            service_url=URL,
            authentication=AuthenticationTLS(paths["a"], paths["a"]),
            tls_certificate_file_path=paths["b"],
            tls_private_key_file_path=paths["b"],
        )
    )
    with pytest.raises(pulsar_encore.ConnectError, match=f"certificate '{paths['a']}'"):
        with_both.initial_service().tls.context()


def test_failover_covers_all_its_clusters() -> None:
    plan = AutoClusterFailover(
        ServiceInfo(URL, AuthenticationToken("t")),
        [ServiceInfo("pulsar+ssl://i", AuthenticationBasic("u", "p"))],
        check_interval_ms=2500,
        failover_threshold=2,
        switch_back_threshold=3,
    )
    clusters, _ = of_options(ClientOptions(service_url=plan))
    assert isinstance(clusters, Failover)
    assert [str(each) for each in clusters.services] == ["pulsar://h:6650", "pulsar+ssl://i:6651"]
    assert [each.credentials.method_name for each in clusters.services] == ["token", "basic"]
    assert (clusters.check_s, clusters.failures, clusters.successes) == (2.5, 2, 3)


class Provider(ServiceInfoProvider):
    def __init__(self, info: Any) -> None:
        self.info = info
        self.tell: Callable[[Any], None] = print

    def initial_service_info(self) -> Any:
        return self.info

    def initialize(self, on_service_info_update: Callable[[Any], None]) -> None:
        self.tell = on_service_info_update


def test_errors_of_a_service_url_provider_are_reported() -> None:
    provider = Provider(ServiceInfo(URL))
    clusters, _ = of_options(ClientOptions(service_url=provider))
    assert isinstance(clusters, Provided)
    assert str(clusters.initial_service()) == "pulsar://h:6650"
    provider.tell(ServiceInfo("pulsar://elsewhere", AuthenticationToken("t")))
    assert str(clusters.initial_service()) == "pulsar://elsewhere:6650"
    with pytest.raises(ConfigurationError, match="got str"):
        provider.tell(URL)
    with pytest.raises(NotSupportedError, match="AuthenticationAthenz"):
        provider.tell(ServiceInfo(URL, AuthenticationAthenz("{}")))
    assert str(clusters.initial_service()) == "pulsar://elsewhere:6650", "and it stays"
    with pytest.raises(ConfigurationError, match="must give a ServiceInfo"):
        of_options(ClientOptions(service_url=Provider(None)))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (ClientOptions(service_url="memory://"), "memory://"),
        (ClientOptions(service_url=URL, authentication=AuthenticationAthenz("{}")), "Athenz"),
        (
            ClientOptions(
                service_url=AutoClusterFailover(
                    ServiceInfo(URL), [ServiceInfo(URL, AuthenticationAthenz("{}"))]
                )
            ),
            "Athenz",
        ),
    ],
)
def test_unsupported_options_are_reported(options: ClientOptions, why: str) -> None:
    reason = unsupported(options)
    assert reason is not None and why in reason
    with pytest.raises(NotSupportedError, match="native transport cannot serve this"):
        of_options(options)


def test_http_service_urls_need_httpx2(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ClientOptions(service_url="http://h:8080")
    assert unsupported(options) is None
    monkeypatch.setattr(native, "find_spec", lambda name: None)
    reason = unsupported(options)
    assert reason is not None and "pulsar-encore[http]" in reason
    assert unsupported(ClientOptions(service_url=URL)) is None


def test_objects_of_the_cpp_client_are_recognised() -> None:
    """The test runs in its own process because imported modules stay imported."""
    program = """
import pulsar
from pulsar_encore.options import ClientOptions
from pulsar_encore.transport.native.service_options import unsupported

def why(**options):
    print(unsupported(ClientOptions(**{"service_url": "pulsar://h", **options})))

why(authentication=pulsar.AuthenticationToken("t"))
info = pulsar.ServiceInfo("pulsar://h")
why(service_url=pulsar.AutoClusterFailover(info, [info]))

class Provider(pulsar.ServiceInfoProvider):
    pass

why(service_url=Provider())

import pulsar_encore
ours = pulsar_encore.ServiceInfo("pulsar://h", pulsar_encore.AuthenticationToken("t"))
why(service_url=pulsar_encore.AutoClusterFailover(ours, [ours]))
why(service_url=pulsar_encore.AutoClusterFailover(ours, [info]))
why(authentication=pulsar_encore.AuthenticationToken("t"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    lines = done.stdout.splitlines()
    refused = ["C++ client" in line or "pulsar-client" in line for line in lines]
    assert refused == [True, True, True, False, True, False]
    assert lines[3] == lines[5] == "None"
