"""Settings of the development broker. Defaults are those of Pulsar 4.2 where Pulsar has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import ConfigurationError
from .rules.credentials import Credential
from .rules.rule_settings import BrokerRules


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsSettings:
    """A second port, for TLS.

    Args:
        certificate_file: The broker's certificate and its chain, PEM.
        key_file: The broker's private key, PEM.
        port: 0 takes a free port, which an outage keeps.
        client_ca_file: CA of client certificates, PEM; None requests no client certificate.
        require_client_certificate: Refuse clients without a certificate.

    Raises:
        ConfigurationError: if a value is out of range, or `client_ca_file` is missing but required.
    """

    certificate_file: str
    key_file: str
    port: int = 0
    client_ca_file: str | None = None
    require_client_certificate: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigurationError(f"port of tls must be from 0 to 65535, not {self.port}")
        if self.require_client_certificate and self.client_ca_file is None:
            raise ConfigurationError("require_client_certificate needs a client_ca_file")


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerSettings(BrokerRules):
    """Settings of one broker. Times are in ms unless the name ends in `_s`.

    Args:
        host: Address to listen on. The broker is not meant for other than loopback addresses.
        port: 0 takes a free port, which an outage keeps.
        tls: Listen for TLS on a second port.
        advertised_url: Answer to LOOKUP; None answers the address that the client connected to.
        advertised_url_tls: The same for clients that connected by TLS.
        redirect_to: Address of another broker to which LOOKUP redirects. This broker then serves no
            topic. Create partitioned topics on both.
        max_message_size: Sent with CONNECTED, in bytes. Frames may be 10 KiB larger.
        keep_alive_s: Interval of PINGs. After two intervals without a byte the connection is
            closed. Infinity disables both.
        liveness_timeout_s: How long a silent owner of an exclusive name may take to answer a PING.
        token: A token that never expires, in addition to `credentials`.
        credentials: Accepted credentials. Without credentials and token, authentication is off.
        auth_refresh_check_s: Interval at which connections are checked for expired credentials.
        topic_watchers: Serve WATCH_TOPIC_LIST (`enableBrokerTopicListWatcher`).
        transactions: Have a transaction coordinator (`transactionCoordinatorEnabled`).
        namespaces: Existing namespaces; None accepts any.
        auto_create: Create missing topics on request.
        auto_create_partitions: Partitions of such topics; 0 for none.
        auto_create_subscriptions: Create missing durable subscriptions on SUBSCRIBE.
        require_lookup: Refuse SUBSCRIBE and PRODUCER before LOOKUP, as Pulsar does.
        first_ledger: First ledger id. A broker that replaces another one under the same clients
            needs ids that the first one did not use.
        entries_per_ledger: Entries after which a ledger is closed.
        keep_acked: Keep entries that every subscription has acked. By default their closed ledgers
            are dropped.
        record: Record every command for tests. Turn it off to measure speed.
        record_limit: Maximum number of recorded commands; the oldest are dropped.
        max_unacked_per_consumer: Unacked messages at which Shared and Key_Shared stop; they
            continue at half of it. 0 for no limit.
        max_unacked_per_subscription: The same over all consumers.
        batch_index_ack: Pulsar's `acknowledgmentAtBatchIndexLevelEnabled`.
        reset_count_on_partial_ack: A partial ack resets the redelivery count to 0, as on Pulsar.
        delayed_delivery: Hold back entries until their delivery time.
        delayed_tick_ms: Granularity of delivery times.
        delayed_strict: Never deliver early. By default delivery may be up to a tick early.
        failover_delay_ms: How long a new active Failover consumer waits for the acks of the old
            one.
        look_ahead: Maximum entries that Key_Shared reads ahead for busy consumers.
        rewind_overtaken: Share, 0 to 1, of rewinds on Exclusive and Failover that a read in flight
            overtakes, so that a block of entries is skipped, as on Pulsar.
        rewind_seed: Selects these rewinds.

    Raises:
        ConfigurationError: if a value is out of range. The text names the field.

    Example:
        A broker with 4 partitions for every new topic::

            run_in_thread(BrokerSettings(auto_create_partitions=4))
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls: TlsSettings | None = None
    advertised_url: str | None = None
    advertised_url_tls: str | None = None
    redirect_to: str | None = None
    max_message_size: int = 5 * 1024 * 1024
    keep_alive_s: float = 30.0
    liveness_timeout_s: float = 5.0
    token: str | None = field(default=None, repr=False)
    credentials: tuple[Credential, ...] = ()
    auth_refresh_check_s: float = 60.0
    topic_watchers: bool = True
    transactions: bool = True
    auto_create_subscriptions: bool = True
    require_lookup: bool = False
    first_ledger: int = 1
    keep_acked: bool = False
    record: bool = True
    record_limit: int = 200_000

    def __post_init__(self) -> None:
        accepted_credentials(self)
        minimums = {
            "port": 0,
            "max_message_size": 1024,
            "auto_create_partitions": 0,
            "first_ledger": 1,
            "entries_per_ledger": 1,
            "record_limit": 1,
            "max_unacked_per_consumer": 0,
            "max_unacked_per_subscription": 0,
            "delayed_tick_ms": 1,
            "failover_delay_ms": 0,
            "look_ahead": 1,
        }
        for name, bound in minimums.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < bound:
                raise ConfigurationError(
                    f"{name} must be an int of at least {bound}, not {value!r}"
                )
        if self.port > 65_535:
            raise ConfigurationError(f"port must be at most 65535, not {self.port}")
        for name in ("keep_alive_s", "liveness_timeout_s", "auth_refresh_check_s"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be more than 0 seconds")
        if not 0 <= self.rewind_overtaken <= 1:
            raise ConfigurationError(
                f"rewind_overtaken must be from 0 (never) to 1, not {self.rewind_overtaken!r}"
            )


def accepted_credentials(settings: BrokerSettings) -> tuple[Credential, ...]:
    if settings.token is None:
        return settings.credentials
    return (Credential(data=settings.token), *settings.credentials)
