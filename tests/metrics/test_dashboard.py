"""The dashboard and the alerts ask for metrics and labels that exist; the settings fit together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pulsar_encore.observability.instruments import INSTRUMENTS
from tests.metrics.promql import Selector, grouped_labels, selectors

DOCKER = Path(__file__).resolve().parents[2] / "docker"
DASHBOARD: dict[str, Any] = json.loads((DOCKER / "grafana" / "dashboard.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
TARGETS = [target for panel in PANELS for target in panel.get("targets", [])]
RULES = [
    rule
    for group in yaml.safe_load((DOCKER / "alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
BY_PROMETHEUS = {"job", "instance"}
#: Series that are not ours, with their labels: of Prometheus and of Pulsar's broker.
OF_OTHERS = {"up": set[str](), "pulsar_subscription_back_log": {"topic", "subscription"}}


def exported() -> dict[str, set[str]]:
    """Return the labels of each name of a series."""
    found: dict[str, set[str]] = {}
    for each in INSTRUMENTS:
        name, labels = each.prometheus_name, set(each.labels)
        if each.kind == "histogram":
            found[f"{name}_bucket"] = labels | {"le"}
            found[f"{name}_sum"] = found[f"{name}_count"] = labels
        else:
            found[name] = labels
    return found


EXPORTED = exported() | OF_OTHERS


def check(expression: str, *, labels: set[str]) -> None:
    found = list(selectors(expression))
    assert found, expression
    for each in found:
        assert each.metric in EXPORTED, f"no metric is named {each.metric}: {expression}"
        known = EXPORTED[each.metric] | BY_PROMETHEUS
        assert known >= each.labels, expression
        assert known >= grouped_labels(expression), expression
    # A label of the legend or the text is left after the aggregation.
    assert grouped_labels(expression) >= labels, expression


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["legendFormat"])
def test_a_query_of_the_dashboard(target: dict[str, Any]) -> None:
    check(target["expr"], labels=set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])))
    for variable in re.findall(r"\$(\w+)", target["expr"]):
        assert variable in VARIABLES or variable in ("__rate_interval", "__range")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert(rule: dict[str, Any]) -> None:
    labels = re.findall(r"\{\{ \$labels\.(\w+) \}\}", rule["annotations"]["summary"])
    check(rule["expr"], labels=set(labels))


def test_a_variable_asks_for_a_label_of_a_metric() -> None:
    queries = [each["definition"] for each in VARIABLES.values() if each["type"] == "query"]
    assert len(queries) == 3
    for query in queries:
        found = re.fullmatch(r'label_values\((\w+|\{__name__=~"(.+)"\}), (\w+)\)', query)
        assert found is not None, query
        pattern = found[2] or found[1]
        asked = [name for name in EXPORTED if re.fullmatch(pattern, name)]
        assert asked
        assert all(found[3] in EXPORTED[name] for name in asked), query


def test_every_topic_of_a_panel_can_be_chosen() -> None:
    # Producers, and the acks of a list, have topics that the deliveries do not have.
    for metric in (
        "messaging_client_consumed_messages_total",
        "messaging_client_sent_messages_total",
        "pulsar_client_consumer_message_ack_total",
    ):
        found = re.search(r'=~"(.+)"', VARIABLES["topic"]["definition"])
        assert found is not None
        assert re.fullmatch(found[1], metric)


def test_the_dashboard_has_a_panel_for_each_group_of_questions() -> None:
    asked = {each.metric for target in TARGETS for each in selectors(target["expr"])}
    for part in (
        "consumed_messages",
        "message_ack",
        "receive_queue",
        "worker_failed",
        "worker_retried",
        "message_dlq",
        "retry_letters",
        "process_duration_seconds_bucket",
        "breaker_open",
        "worker_ready",
        "window_unacked",
        "redelivered",
        "reconnects",
    ):
        assert any(part in metric for metric in asked), part


def test_ids_of_panels_are_unique_and_panels_do_not_overlap() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    used: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        cells = set(_cells(place))
        assert not used & cells, panel["title"]
        used |= cells
    assert all(panel["title"] for panel in PANELS)
    assert all(panel["description"] for panel in PANELS if panel["type"] != "row")


def _cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def test_every_query_uses_the_data_source_of_the_variable() -> None:
    assert VARIABLES["datasource"]["type"] == "datasource"
    used = {"type": VARIABLES["datasource"]["query"], "uid": "${datasource}"}
    asking = [*TARGETS, *(panel for panel in PANELS if panel["type"] != "row")]
    asking += [each for each in VARIABLES.values() if each["type"] == "query"]
    assert all(each["datasource"] == used for each in asking)
    for panel in PANELS:
        refs = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(refs)) == len(refs)
    assert DASHBOARD["schemaVersion"] >= 39
    assert DASHBOARD["uid"]
    assert DASHBOARD.get("id") is None, "Grafana gives the id"


def test_the_compose_profile_mounts_files_that_exist() -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))["services"]
    monitoring = {
        name: each for name, each in services.items() if each["profiles"] == ["monitoring"]
    }
    assert set(monitoring) == {"prometheus", "grafana"}
    mounts = {}
    for service in monitoring.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source, target, _ = volume.split(":")
            assert (DOCKER / source).exists(), source
            mounts[target] = DOCKER / source
    settings = yaml.safe_load(mounts["/etc/prometheus/prometheus.yml"].read_text("utf-8"))
    assert all(path in mounts for path in settings["rule_files"])
    provisioning = mounts["/etc/grafana/provisioning"]
    [source] = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text("utf-8"))[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((provisioning / "dashboards/files.yaml").read_text("utf-8"))[
        "providers"
    ]
    folder = provider["options"]["path"]
    assert [path for path in mounts if Path(path).parent == Path(folder)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('sum by (a, b) (rate(m_total{a=~"$a", c!=""}[5m])) > 0', {("m_total", "a", "c")}),
        ('max(x) / on (a) group_left y{b="1"}', {("x",), ("y", "b")}),
        ("histogram_quantile(0.5, sum(rate(d_bucket[$__rate_interval])))", {("d_bucket",)}),
    ],
)
def test_selectors_are_found(expression: str, expected: set[tuple[str, ...]]) -> None:
    wanted = {Selector(metric, frozenset(labels)) for metric, *labels in expected}
    assert set(selectors(expression)) == wanted
