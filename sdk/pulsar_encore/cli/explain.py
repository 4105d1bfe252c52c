"""`pulsar-encore explain`: where one message is."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict

from ..deadletters import printable
from .cluster_client import connect, web_service
from .exit_codes import NOTHING_THERE
from .explanation import MessageFacts, State, Verdict, decide
from .explanation.fact_collector import FactCollector, Question
from .login import ClusterAccess
from .value_text import iso_time, json_text, time_text

_MISSING = frozenset(
    {State.NO_TOPIC, State.NO_SUBSCRIPTION, State.NOT_PUBLISHED, State.TRIMMED, State.UNKNOWN}
)


def run_explain(
    cluster: ClusterAccess, admin_url: str | None, question: Question, *, json: bool
) -> int:
    facts = asyncio.run(_collect(cluster, admin_url, question))
    verdict = decide(facts, round(time.time() * 1000))
    sys.stdout.write(verdict_json(verdict, facts) if json else verdict_text(verdict))
    return NOTHING_THERE if verdict.state in _MISSING else 0


async def _collect(
    cluster: ClusterAccess, admin_url: str | None, question: Question
) -> MessageFacts:
    web = web_service(cluster, admin_url) if admin_url else None
    try:
        async with connect(cluster) as client:
            return await FactCollector(client, cluster, web, question).collect()
    finally:
        if web is not None:
            web.close()


def verdict_text(verdict: Verdict) -> str:
    lines = [
        f"{verdict.state.value}: {verdict.summary}",
        f"  message   {verdict.id} of {verdict.topic}",
    ]
    if verdict.due_ms is not None:
        lines.append(f"  due       {time_text(verdict.due_ms)}")
    lines += [f"  {each}" for each in verdict.details]
    lines += [f"  not seen: {each}" for each in verdict.not_seen]
    return "".join(f"{printable(each)}\n" for each in lines)


def verdict_json(verdict: Verdict, facts: MessageFacts) -> str:
    copies = []
    for copy in facts.copies:
        fields = asdict(copy)
        for name in ("written_ms", "due_ms"):
            fields[name.removesuffix("_ms")] = iso_time(fields.pop(name))
        if fields["pending"] is not None:
            for name in ("since_ms", "due_ms"):
                pending = fields["pending"]
                pending[name.removesuffix("_ms")] = iso_time(pending.pop(name))
        copies.append(fields)
    return json_text(
        {
            "state": verdict.state.value,
            "summary": verdict.summary,
            "topic": verdict.topic,
            "id": verdict.id,
            "due": iso_time(verdict.due_ms),
            "details": verdict.details,
            "not_seen": verdict.not_seen,
            "copies": copies,
        }
    )
