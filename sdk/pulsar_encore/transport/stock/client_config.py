"""Convert the values of `ClientOptions` to the classes of `pulsar-client`, which it checks for."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import _pulsar
import pulsar

from ...authentication import Authentication
from ...options import ConsoleLogger, FileLogger
from ...values.service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider


class _Authentication(pulsar.Authentication):  # type: ignore[misc]
    def __init__(self, native: Any) -> None:
        self.auth = native


class _Provider(pulsar.ServiceInfoProvider):  # type: ignore[misc]
    def __init__(self, given: ServiceInfoProvider) -> None:
        self._given = given

    def initial_service_info(self) -> Any:
        return _service_info(self._given.initial_service_info())

    def initialize(self, on_service_info_update: Callable[[Any], None]) -> None:
        self._given.initialize(lambda info: on_service_info_update(_service_info(info)))

    def close(self) -> None:
        self._given.close()


def authentication(given: Any) -> Any:
    return _Authentication(given.auth) if isinstance(given, Authentication) else given


def service_url(given: Any) -> Any:
    if isinstance(given, AutoClusterFailover):
        return pulsar.AutoClusterFailover(
            _service_info(given.primary),
            [_service_info(each) for each in given.secondary],
            given.check_interval_ms,
            given.failover_threshold,
            given.switch_back_threshold,
        )
    return _Provider(given) if isinstance(given, ServiceInfoProvider) else given


def logger(given: Any) -> Any:
    if isinstance(given, ConsoleLogger):
        return pulsar.ConsoleLogger(native_enum(given.log_level))
    if isinstance(given, FileLogger):
        return pulsar.FileLogger(native_enum(given.log_level), given.log_file)
    return given


def native_enum(member: Enum) -> Any:
    """Return the member of `_pulsar` with the same class name and name."""
    return getattr(getattr(_pulsar, type(member).__name__), member.name)


def _service_info(given: Any) -> Any:
    if not isinstance(given, ServiceInfo):
        return given
    return pulsar.ServiceInfo.wrap(given._service_info)
