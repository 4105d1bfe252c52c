"""Reports: one line for each run, a failing run in full, and the table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .checker import Finding, Verdict, involved
from .clients import ClientName
from .history_runner import Outcome
from .workload import Workload

SHOWN = 8


def line(outcome: Outcome) -> str:
    """Return one run in one line."""
    verdict, workload = outcome.verdict, outcome.workload
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.kinds().items()))
    doubles = sum(verdict.doubles.values())
    return (
        f"{workload.seed:6} {workload.name:14} {outcome.client:6} {outcome.seconds:5.1f} s "
        f"{verdict.produced:5} messages {verdict.handed:6} deliveries {doubles:4} doubles  "
        f"{kinds or 'no finding'}"
    )


def command(workload: Workload, broker: str, client: ClientName, *, of_seed: bool) -> str:
    """Return the command that repeats a run."""
    transport = " --transport native" if client == "native" else ""
    which = f"--seeds {workload.seed}" if of_seed else f"--workload '{workload.dumps()}'"
    return f"python -m tests.harness.histories {which} --broker {broker}{transport}"


def full(outcome: Outcome, broker: str, *, of_seed: bool) -> str:
    """Return a failing run: workload, findings, the events that show them, and the command."""
    findings = outcome.verdict.findings
    chosen = [
        next(finding for finding in findings if finding.kind == kind)
        for kind in outcome.verdict.kinds()
    ]
    lines = [line(outcome), f"  workload: {outcome.workload.dumps()}", "  findings:"]
    lines += [f"    {finding}" for finding in findings[:SHOWN]]
    if len(findings) > SHOWN:
        lines.append(f"    and {len(findings) - SHOWN} more")
    lines.append("  history of the first of each kind:")
    lines += [f"    {event}" for event in involved(chosen, outcome.events)]
    lines.append(f"  again: {command(outcome.workload, broker, outcome.client, of_seed=of_seed)}")
    return "\n".join(lines)


def history(outcome: Outcome, number: int) -> str:
    """Return the events of one message, and those that concern all messages."""
    selected = [Finding(kind="asked for", text="", number=number)]
    return "\n".join(f"    {event}" for event in involved(selected, outcome.events, most=10_000))


def side_by_side(pairs: Sequence[tuple[Outcome, Outcome]]) -> str:
    """Compare the same workloads on both clients: duplicates, losses, gaps."""
    names = (
        "doubles",
        "lost",
        "stuck",
        "gap",
        "went back",
        "uncovered",
        "acked again",
        "early",
        "late",
    )
    lines = [f"{len(pairs)} workloads on both clients{'':6} encore   stock"]
    for name in names:
        ours, theirs = (_sum(name, (pair[at].verdict for pair in pairs)) for at in (0, 1))
        lines.append(f"  {name:30} {ours:6} {theirs:7}")
    worse = [
        str(ours.workload.seed)
        for ours, theirs in pairs
        if _lost(ours.verdict) > _lost(theirs.verdict)
    ]
    lines.append(f"  worse than stock in losses: {', '.join(worse) or 'none'}")
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return all runs in a few lines."""
    failing = [outcome for outcome in outcomes if outcome.verdict.findings]
    doubles: Counter[str] = Counter()
    for outcome in outcomes:
        doubles += outcome.verdict.doubles
    lines = [
        f"{len(outcomes)} histories, {sum(o.verdict.produced for o in outcomes)} messages, "
        f"{sum(o.verdict.handed for o in outcomes)} deliveries; {len(failing)} with findings"
    ]
    lines += [f"  {count:5} handed out again: {rule}" for rule, count in doubles.most_common()]
    if failing:
        seeds = ", ".join(str(outcome.workload.seed) for outcome in failing)
        lines.append(f"  failing seeds: {seeds}")
    return "\n".join(lines)


def _sum(name: str, verdicts: Iterable[Verdict]) -> int:
    if name == "doubles":
        return sum(sum(verdict.doubles.values()) for verdict in verdicts)
    return sum(verdict.messages(name) for verdict in verdicts)


def _lost(verdict: Verdict) -> int:
    return sum(verdict.messages(name) for name in ("lost", "stuck", "uncovered"))


def smaller(before: Workload, after: Workload, tries: int) -> str:
    """Return one line about the result of shrinking."""
    return (
        f"  made smaller in {tries} runs: {before.messages} -> {after.messages} messages, "
        f"{before.members} -> {after.members} consumers, "
        f"{len(before.actions)} -> {len(after.actions)} actions"
    )
