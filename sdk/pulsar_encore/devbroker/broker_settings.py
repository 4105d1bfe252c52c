"""What can be set on the development broker; defaults are those of Pulsar 4.2 where it has them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from ..errors import ConfigurationError
from .rules.credentials import Credential
from .rules.rule_settings import SubscriptionRules, TopicRules


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsSettings:
    """A second port, for TLS.

    Args:
        certificate_file: The broker's certificate, and what else of its chain is to be sent, PEM.
        key_file: Its private key, PEM.
        port: 0 takes a free one, kept over an outage.
        client_ca_file: Whose certificates clients may show, PEM; None asks them for none.
        require_client_certificate: Refuse clients that show none.

    Raises:
        ConfigurationError: A value out of range, or a requirement without a `client_ca_file`.
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
class BrokerSettings:
    """Settings of one broker; times in ms unless the name says `_s`.

    Args:
        host: Address to listen on; anything but loopback is the caller's decision.
        port: 0 takes a free one, kept over an outage.
        tls: Listen for TLS too, on a port of its own.
        advertised_url: What LOOKUP answers; None answers the address the client connected to.
        advertised_url_tls: The same for clients that came by TLS.
        redirect_to: Address of another broker that LOOKUP sends clients to: this one then serves
            no topic. Partitions of a topic are to be made on both.
        max_message_size: Sent with CONNECTED; frames may be 10 KiB longer.
        keep_alive_s: PING after so long, closed after twice as long without a byte; infinite for
            never.
        liveness_timeout_s: How long a silent holder of an exclusive name may take to answer a PING.
        token: A token that never expires, besides `credentials`.
        credentials: What clients may authenticate with; none at all turns authentication off.
        auth_refresh_check_s: How often a connection is looked at whose credential may have expired.
        topic_watchers: WATCH_TOPIC_LIST is served: `enableBrokerTopicListWatcher`.
        namespaces: The ones that exist; None accepts any.
        auto_create: Topics appear when asked for.
        auto_create_partitions: So many partitions for those; 0 for none.
        auto_create_subscriptions: Durable subscriptions appear when subscribed to.
        require_lookup: SUBSCRIBE and PRODUCER before LOOKUP are refused, as Pulsar does.
        first_ledger: Ids of ledgers begin here. A broker that starts anew, under clients that knew
            the one before it, needs others than that had.
        entries_per_ledger: A ledger is closed when it holds so many.
        keep_acked: Keep what every subscription has acked; else closed ledgers of it are dropped.
        record: Keep every command for tests to look at; turn it off to measure speed.
        record_limit: Oldest commands are forgotten beyond so many.

        max_unacked_per_consumer: Shared and Key_Shared stop here and go on at half; 0 for no limit.
        max_unacked_per_subscription: The same over all consumers.
        batch_index_ack: Pulsar's `acknowledgmentAtBatchIndexLevelEnabled`.
        reset_count_on_partial_ack: A partial ack makes the redelivery count 0, as Pulsar does.
        delayed_delivery: Hold back entries with a delivery time.
        delayed_tick_ms: Granularity of that.
        delayed_strict: Never early, rather than up to a tick early.
        failover_delay_ms: How long a new active Failover consumer waits for the old one's acks.
        look_ahead: Key_Shared reads so many entries ahead that wait for their consumer.
        rewind_overtaken: Share, 0 to 1, of the rewinds of Exclusive and Failover that a read under
            way overtakes, so that a block of entries is skipped, as Pulsar does.
        rewind_seed: Decides which ones.

    Raises:
        ConfigurationError: A value out of range; names the field.
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
    namespaces: tuple[str, ...] | None = ("public/default",)
    auto_create: bool = True
    auto_create_partitions: int = 0
    auto_create_subscriptions: bool = True
    require_lookup: bool = False
    first_ledger: int = 1
    entries_per_ledger: int = 50_000
    keep_acked: bool = False
    record: bool = True
    record_limit: int = 200_000
    max_unacked_per_consumer: int = 50_000
    max_unacked_per_subscription: int = 200_000
    batch_index_ack: bool = True
    reset_count_on_partial_ack: bool = True
    delayed_delivery: bool = True
    delayed_tick_ms: int = 1000
    delayed_strict: bool = False
    failover_delay_ms: int = 1000
    look_ahead: int = 20_000
    rewind_overtaken: float = 0.75
    rewind_seed: int = 0

    def __post_init__(self) -> None:
        self.accepted()
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

    def accepted(self) -> tuple[Credential, ...]:
        """All that clients may authenticate with."""
        if self.token is None:
            return self.credentials
        return (Credential(data=self.token), *self.credentials)

    def rules(self) -> SubscriptionRules:
        """The part that subscriptions obey."""
        names = (each.name for each in fields(SubscriptionRules))
        return SubscriptionRules(**{name: getattr(self, name) for name in names})

    def topic_rules(self) -> TopicRules:
        """The part that the catalogue of topics obeys."""
        names = (each.name for each in fields(TopicRules))
        return TopicRules(**{name: getattr(self, name) for name in names})
