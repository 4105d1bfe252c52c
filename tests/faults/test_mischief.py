"""What goes wrong on a connection, byte by byte, and what does not."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.wire import frames, pb
from tests.harness.faults.cases import generate
from tests.harness.faults.mischief import End, Kind, Mischief, Step, Stream, WireFault

PING = frames.encode(pb.CommandPing())
FLOW = frames.encode(pb.CommandFlow(consumer_id=1, messagePermits=5))
BODY = bytes(range(40))
SEND = frames.encode_with_body(pb.CommandSend(producer_id=1, sequence_id=7), BODY)


def stream(kind: Kind, command: str, nth: int = 1, **fields: Any) -> tuple[Stream, Mischief]:
    fault = WireFault(kind=kind, direction="in", command=command, nth=nth, **fields)
    mischief = Mischief([fault], Random(5))
    return Stream(mischief, "in"), mischief


def passed(steps: list[Step]) -> bytes:
    return b"".join(step for step in steps if isinstance(step, bytes))


@given(st.lists(st.sampled_from([PING, FLOW, SEND]), max_size=8), st.data())
def test_without_a_fault_all_bytes_pass_in_any_pieces(
    sent: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(sent)
    untouched = Stream(Mischief([], Random(0)), "in")
    out, at = b"", 0
    while at < len(whole):
        end = data.draw(st.integers(at + 1, len(whole)))
        out += passed(untouched.feed(whole[at:end]))
        at = end
    assert out == whole


def test_frames_that_are_written_together_pass_together() -> None:
    untouched = Stream(Mischief([], Random(0)), "in")
    assert untouched.feed(PING + FLOW + SEND) == [PING + FLOW + SEND]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cut before", [PING + FLOW, End.CUT]),
        ("cut after", [PING + FLOW + FLOW, End.CUT]),
        ("delay", [PING + FLOW, 0.5, FLOW + PING]),
        ("stall", [PING + FLOW, End.STALL]),
    ],
)
def test_a_fault_hits_the_nth_command_of_its_type(kind: Kind, expected: list[Step]) -> None:
    faulty, mischief = stream(kind, "FLOW", 2, seconds=0.5)
    assert faulty.feed(PING + FLOW + FLOW + PING) == expected
    assert [fault.kind for fault in mischief.fired] == [kind]


def test_no_byte_passes_after_a_cut() -> None:
    faulty, _ = stream("cut inside", "FLOW")
    steps = faulty.feed(FLOW + PING)
    assert steps[-1] is End.CUT
    assert FLOW.startswith(passed(steps)) and len(passed(steps)) < len(FLOW)
    assert faulty.feed(PING) == []


def test_commands_are_counted_over_all_connections() -> None:
    faulty, mischief = stream("cut before", "FLOW", 2)
    assert faulty.feed(FLOW) == [FLOW]
    assert Stream(mischief, "out").feed(FLOW) == [FLOW]
    assert Stream(mischief, "in").feed(FLOW) == [End.CUT]


def test_a_command_that_is_split_arrives_whole() -> None:
    faulty, _ = stream("split", "SEND")
    steps = faulty.feed(SEND + PING)
    assert passed(steps) == SEND + PING
    assert len(steps) > 10


def test_a_damaged_payload_differs_in_one_byte_after_the_command() -> None:
    faulty, _ = stream("payload", "SEND")
    [changed] = faulty.feed(SEND)
    assert isinstance(changed, bytes)
    differing = [at for at, (a, b) in enumerate(zip(changed, SEND, strict=True)) if a != b]
    assert len(differing) == 1
    assert differing[0] >= 8 + int.from_bytes(SEND[4:8])


def test_a_damaged_command_cannot_be_decoded() -> None:
    faulty, _ = stream("command", "FLOW")
    [changed] = faulty.feed(FLOW)
    assert isinstance(changed, bytes)
    with pytest.raises(frames.FrameError):
        frames.decode_command(changed[8:], skip_unknown=False)


def test_lookup_responses_name_the_proxy() -> None:
    mischief = Mischief([], Random(0), broker_url="pulsar://proxy:1")
    answer = pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE)
    answer.lookupTopicResponse.request_id = 3
    answer.lookupTopicResponse.brokerServiceUrl = "pulsar://broker:6650"
    [renamed] = Stream(mischief, "out").feed(frames.encode(answer))
    assert isinstance(renamed, bytes)
    found = pb.BaseCommand.FromString(renamed[8:]).lookupTopicResponse
    assert (found.request_id, found.brokerServiceUrl) == (3, "pulsar://proxy:1")


def test_a_seed_gives_one_case_and_all_cases_cover_every_kind_and_fault() -> None:
    cases = [generate(seed) for seed in range(1, 1001)]
    assert cases[:50] == [generate(seed) for seed in range(1, 51)]
    assert {(case.kind, case.content, case.acking) for case in cases} >= {
        (kind, content, acking)
        for kind in ("Exclusive", "Failover")
        for content in ("plain", "batch", "chunks")
        for acking in ("single", "list", "cumulative")
    }
    assert all(case.messages > case.queue for case in cases)
    hit = {(fault.kind, fault.direction) for case in cases for fault in case.faults}
    assert len(hit) == 20
