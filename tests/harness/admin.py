"""A client of a broker's admin API for tests: topics, subscriptions, policies, faults.

A call returns when the broker has answered. Any answer but success raises `AdminError` with the
broker's reason. The calls block and use the standard library only. If a test has work running on
its loop, call them through `asyncio.to_thread`.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

# Brokers under test are reached without the environment's proxy.
_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class AdminError(RuntimeError):
    """The broker refused a call.

    Args:
        status: HTTP status.
        reason: The broker's text.
        call: Method and path.
    """

    def __init__(self, status: int, reason: str, call: str) -> None:
        super().__init__(f"{call}: {status} {reason}")
        self.status = status
        self.reason = reason


class Admin:
    """The admin API of one broker.

    Topics are named as for a client: `orders`, `tenant/namespace/orders` or
    `persistent://tenant/namespace/orders`.

    Args:
        url: Root, such as `http://127.0.0.1:8080`.
        timeout: Timeout of one call, in s.
        token: Token for a broker that requires one.
    """

    def __init__(self, url: str, *, timeout: float = 30.0, token: str = "") -> None:
        self._root = f"{url.rstrip('/')}/admin/v2"
        self._timeout = timeout
        self._login = {"Authorization": f"Bearer {token}"} if token else {}

    def create_namespace(self, namespace: str, policies: Mapping[str, Any] | None = None) -> None:
        """Create `tenant/namespace`, with policies by their names in Pulsar's `Policies`."""
        self.call("PUT", f"/namespaces/{namespace}", dict(policies or {}))

    def delete_namespace(self, namespace: str, *, force: bool = True) -> None:
        """Delete a namespace; with `force`, its topics as well."""
        self.call("DELETE", f"/namespaces/{namespace}", force=force)

    def set_namespace_policy(self, namespace: str, policy: str, value: Any) -> None:
        """Set a policy by its path, such as `delayedDelivery` or `deduplication`."""
        self.call("POST", f"/namespaces/{namespace}/{policy}", value)

    def topics(self, namespace: str = "public/default") -> list[str]:
        """Return the full names of the existing topics; for partitioned topics, of their
        partitions.
        """
        stats: list[str] = self.call("GET", f"/persistent/{namespace}")
        return stats

    def create_topic(self, topic: str) -> None:
        """Create an unpartitioned topic."""
        self.call("PUT", _path(topic))

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic and its partitions."""
        self.call("PUT", f"{_path(topic)}/partitions", partitions)

    def grow_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Increase the number of partitions."""
        self.call("POST", f"{_path(topic)}/partitions", partitions)

    def delete_topic(self, topic: str, *, partitioned: bool = False) -> None:
        """Delete a topic with its subscriptions, even if clients are connected."""
        self.call("DELETE", _path(topic) + ("/partitions" if partitioned else ""), force=True)

    def unload(self, topic: str) -> None:
        """Close the topic on its broker. Clients reconnect, and redelivery counts are lost."""
        self.call("PUT", f"{_path(topic)}/unload")

    def terminate(self, topic: str) -> dict[str, Any]:
        """Terminate the topic for producers, and return the last message id."""
        last: dict[str, Any] = self.call("POST", f"{_path(topic)}/terminate")
        return last

    def trim(self, topic: str) -> None:
        """Start to delete closed ledgers that no subscription needs. It continues after the
        return.
        """
        self.call("POST", f"{_path(topic)}/trim")

    def stats(self, topic: str) -> dict[str, Any]:
        """Return live statistics with the exact backlog."""
        stats: dict[str, Any] = self.call("GET", f"{_path(topic)}/stats", getPreciseBacklog=True)
        return stats

    def partitioned_stats(self, topic: str) -> dict[str, Any]:
        """Return live statistics, summed and by partition."""
        stats: dict[str, Any] = self.call("GET", f"{_path(topic)}/partitioned-stats")
        return stats

    def internal_stats(self, topic: str) -> dict[str, Any]:
        """Return ledgers and cursors: written entries and mark-delete positions."""
        stats: dict[str, Any] = self.call("GET", f"{_path(topic)}/internalStats")
        return stats

    def subscription_stats(self, topic: str, subscription: str) -> dict[str, Any]:
        """Return the subscription's part of `stats`: `msgBacklog`, `unackedMessages`, `consumers`
        and so on.

        Raises:
            KeyError: if the topic has no such subscription.
        """
        stats: dict[str, Any] = self.stats(topic)["subscriptions"][subscription]
        return stats

    def create_subscription(self, topic: str, subscription: str, *, earliest: bool = True) -> None:
        """Create a durable subscription at the beginning or at the end of the topic."""
        ledger, entry = (-1, -1) if earliest else (2**63 - 1, 2**63 - 1)
        position = {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}
        self.call("PUT", _subscription(topic, subscription), position)

    def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete a subscription, even if consumers are connected."""
        self.call("DELETE", _subscription(topic, subscription), force=True)

    def reset_cursor(self, topic: str, subscription: str, timestamp_ms: int) -> None:
        """Move the subscription to the first message published at or after `timestamp_ms` (Unix
        time).
        """
        self.call("POST", f"{_subscription(topic, subscription)}/resetcursor/{timestamp_ms}")

    def reset_cursor_to(self, topic: str, subscription: str, ledger: int, entry: int) -> None:
        """Move the subscription to an entry, which is delivered again."""
        position = {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}
        self.call("POST", f"{_subscription(topic, subscription)}/resetcursor", position)

    def skip_all(self, topic: str, subscription: str) -> None:
        """Clear the backlog of the subscription."""
        self.call("POST", f"{_subscription(topic, subscription)}/skip_all")

    def set_topic_policy(self, topic: str, policy: str, value: Any) -> None:
        """Set a policy by its path, such as `maxUnackedMessagesOnConsumer`. It takes effect with a
        delay.
        """
        self.call("POST", f"{_path(topic)}/{policy}", value)

    def topic_policy(self, topic: str, policy: str) -> Any:
        """Return the value that `set_topic_policy` set, or None."""
        return self.call("GET", f"{_path(topic)}/{policy}")

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Call the API, for requests without a method here.

        Args:
            method: HTTP method.
            path: Path below `/admin/v2`, quoted.
            body: Body, sent as JSON unless None.
            query: Query parameters; booleans and numbers are written as JSON.

        Returns:
            The JSON of the answer, None without a body.

        Raises:
            AdminError: if the broker refused the call.
            OSError: if the broker could not be reached.
        """
        fields = {name: json.dumps(value) for name, value in query.items()}
        url = self._root + path + (f"?{urlencode(fields)}" if fields else "")
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self._login}
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with _http.open(request, timeout=self._timeout) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as e:
            with e:
                text = e.read().decode(errors="replace")
            raise AdminError(e.code, text or e.reason, f"{method} {path}") from e
        return json.loads(raw) if raw else None


def _path(topic: str) -> str:
    domain, separator, rest = topic.partition("://")
    if not separator:
        domain, rest = "persistent", topic
    parts = rest.split("/", 2)
    if len(parts) == 1:
        parts = ["public", "default", rest]
    if len(parts) != 3:
        raise ValueError(f"{topic!r} is not a topic: use name or tenant/namespace/name")
    tenant, namespace, name = parts
    return f"/{domain}/{tenant}/{namespace}/{quote(name, safe='')}"


def _subscription(topic: str, subscription: str) -> str:
    return f"{_path(topic)}/subscription/{quote(subscription, safe='')}"
