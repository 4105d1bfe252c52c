"""The layers of the package: imports point down, and private names stay in their file.

`FLOORS` names every file or folder once, lowest first. A file imports from its own floor and from
floors below, also for types. No files import each other in a circle. The pure parts do no I/O, and
only one package imports the C++ client.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pulsar_encore

ROOT = Path(pulsar_encore.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if not path.name.endswith("_pb2.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

# Files and folders, lowest first. If two entries match a file, the longer one counts.
FLOORS: tuple[tuple[str, ...], ...] = (
    # Values
    (
        "version.py",
        "stock.py",
        "eventloop/fair_yield.py",
        "eventloop/shielded_work.py",
        "eventloop/mailbox.py",
        "values/topic_names.py",
        "eventloop/alarm.py",
    ),
    ("eventloop/disposal.py", "eventloop/close_once.py"),
    ("values/pulsar_enum.py", "errors/result.py"),
    (
        "errors/",
        "exceptions.py",
        "values/",
        "eventloop/affinity.py",
        "eventloop/process.py",
        "eventloop/__init__.py",
    ),
    ("codecs/",),
    ("options/", "eventloop/awaitables.py"),
    ("authentication/", "values/crypto_keys.py"),
    ("values/service_info.py",),
    # Pure
    ("letters/", "wire/"),
    ("core/",),
    # Durable state
    ("state/directory_advice.py", "state/little_endian.py", "state/blobs/blob_store.py"),
    ("state/directory_lock.py",),
    ("state/blobs/",),
    ("state/spilling/",),
    ("state/__init__.py",),
    ("message.py",),
    # State on disk
    ("state/",),
    # Transports
    ("transport/interface.py", "transport/__init__.py"),
    (
        "observability/__init__.py",
        "observability/meters.py",
        "observability/observations.py",
        "observability/observer.py",
    ),
    (
        "observability/error_types.py",
        "observability/histogram.py",
        "observability/instruments.py",
        "observability/loop_reads.py",
    ),
    ("observability/topic_labels.py", "observability/prometheus_families.py"),
    ("observability/observer_list.py",),
    ("observability/observed_sends.py",),
    ("transport/merged_consumer.py", "transport/error_advice.py"),
    ("transport/versioned/",),
    ("transport/stock/",),
    # The native transport, bottom-up
    ("transport/native/__init__.py", "transport/native/client_settings.py"),
    ("transport/native/connection/",),
    ("transport/native/lookup/",),
    ("transport/native/transactions/",),
    ("transport/native/connection/attachment.py",),
    ("transport/native/lookup/pattern_watch.py", "transport/native/clusters.py"),
    ("transport/native/wire_schema.py",),
    ("transport/native/consumer/", "transport/native/producer/"),
    ("transport/native/transaction_outcome.py",),
    ("transport/native/native_transport.py", "transport/native/service_options.py"),
    ("transport/transport_choice.py",),
    # The web service of the brokers
    ("admin/answer_fields.py",),
    ("admin/topic_stats.py", "admin/internal_stats.py", "admin/transactions.py"),
    ("admin/web_service.py",),
    ("admin/",),
    ("transaction.py", "transaction_group.py"),
    # The consumer, bottom-up
    (
        "consumer/topic_states.py",
        "consumer/consumer_status.py",
        "consumer/unacked_window_monitor.py",
        "consumer/state_writer.py",
    ),
    ("consumer/nack_disk_index.py",),
    ("consumer/events.py", "consumer/event_publisher.py"),
    ("consumer/delivery/",),
    ("consumer/settlement/",),
    ("consumer/forwarding/",),
    ("consumer/leases/",),
    (
        "consumer/counters.py",
        "consumer/delivery_handler.py",
        "consumer/held_messages.py",
        "consumer/statistics.py",
        "consumer/settlement_calls.py",
        "consumer/topic_counts.py",
    ),
    ("consumer/pending_messages.py", "consumer/lag.py"),
    ("consumer/consumer.py",),
    ("consumer/consumer_factory.py", "consumer/__init__.py"),
    ("reader/read_queue.py",),
    ("producer.py", "reader/", "schema.py", "message_batch.py"),
    ("client.py",),
    # The development broker
    ("devbroker/rules/",),
    ("devbroker/clock.py", "devbroker/broker_settings.py", "devbroker/frame_encoders.py"),
    ("devbroker/recorder.py", "devbroker/scheduler.py", "devbroker/attached.py"),
    ("devbroker/broker_service.py",),
    ("devbroker/handlers/",),
    ("devbroker/session.py", "devbroker/login.py", "devbroker/fault_injection.py"),
    ("devbroker/",),
    # Programs on top of the API
    ("testing/", "deadletters/", "evacuation/"),
    # Workers, bottom-up
    (
        "worker/__init__.py",
        "worker/retry_policy.py",
        "worker/reject_streak.py",
        "worker/standby.py",
        "worker/handler_threads.py",
        "worker/abandoned_tasks.py",
        "worker/loop_watchdog.py",
        "worker/subscribe_options.py",
        "worker/health.py",
        "worker/batch_failure.py",
    ),
    ("worker/breaker.py", "worker/scheduler.py", "worker/handler_call.py", "worker/slots.py"),
    ("worker/commit_queue.py", "worker/transaction_journal.py"),
    (
        "worker/worker_core.py",
        "worker/outbox.py",
        "worker/list_scheduler.py",
        "worker/failure_log.py",
    ),
    ("worker/batch_core.py", "worker/limit_log.py", "worker/start_log.py"),
    (
        "worker/handler_context.py",
        "worker/worker_options.py",
        "worker/worker_start.py",
        "worker/outcome.py",
        "worker/message_groups.py",
        "worker/message_values.py",
        "worker/topic_priorities.py",
    ),
    ("worker/batch_options.py", "worker/readiness.py", "worker/observed_calls.py"),
    ("worker/result_commits.py",),
    ("worker/drain_deadline.py", "worker/drain_signals.py"),
    ("worker/worker_pending.py",),
    ("worker/worker_session.py", "worker/run.py", "worker/single_call.py"),
    ("worker/transactional_session.py", "worker/batch_session.py"),
    ("worker/worker.py",),
    ("worker/",),
    # Exporters of metrics
    ("observability/samples.py",),
    ("observability/object_registry.py",),
    ("observability/metrics_observer.py",),
    ("prometheus.py",),
    ("otel/",),
    ("testing/worker_drain.py", "testing/__init__.py"),
    # Health of workers over HTTP
    ("health/probe_answers.py",),
    ("health/worker_probe.py", "health/metrics_text.py", "health/pending_list.py"),
    ("health/",),
    ("asyncio.py",),
    ("__init__.py",),
    # Spark, bottom-up
    ("spark/compat.py", "spark/interpreters.py", "spark/plain_errors.py"),
    (
        "spark/spark_errors.py",
        "spark/option_parsers.py",
        "spark/offsets.py",
        "spark/batch_plan.py",
        "spark/task_split.py",
    ),
    (
        "spark/source_columns.py",
        "spark/encryption_keys.py",
        "spark/filter_pushdown.py",
        "spark/retry_delays.py",
    ),
    ("spark/option_table.py",),
    ("spark/connection_options.py",),
    ("spark/runtime.py", "spark/source_options.py", "spark/admin.py"),
    ("spark/reader/",),
    ("spark/driver/",),
    ("spark/sink/commit_journal.py",),
    ("spark/sink/",),
    ("spark/data_source.py",),
    ("spark/metric_text.py",),
    ("spark/triage/", "spark/metrics.py"),
    ("spark/__init__.py",),
    ("cli/", "__main__.py"),
)

PURE = (
    "core/",
    "letters/",
    "wire/",
    "observability/error_types.py",
    "observability/instruments.py",
    "observability/samples.py",
    "observability/topic_labels.py",
    "health/pending_list.py",
    "health/probe_answers.py",
    "spark/sink/commit_journal.py",
    "worker/batch_core.py",
    "worker/batch_failure.py",
    "worker/breaker.py",
    "worker/list_scheduler.py",
    "worker/reject_streak.py",
    "worker/retry_policy.py",
    "worker/scheduler.py",
    "worker/standby.py",
    "worker/worker_core.py",
    "devbroker/rules/",
    "devbroker/handlers/",
)
IMPURE = {"asyncio", "time", "socket", "logging", "threading", "selectors", "random", "anyio"}
# For the type of an argument: the caller seeds the source of random numbers.
IMPURE_ALLOWED = {("worker/worker_core.py", "random"), ("worker/batch_core.py", "random")}
# The stock transport imports the C++ client, and so does the demo that compares both clients.
# (`stock.library` imports it by its name, for code of pulsar-client.)
NATIVE = {"pulsar", "_pulsar"}
NATIVE_ALLOWED = ("transport/stock/", "cli/demo/")
# Private names that another file may use: on the path of each message, where a call would be too
# expensive; private names of asyncio, the C++ client and Spark; and names of the same class.
PRIVATE_ALLOWED = {
    ("client.py", "client._transport"),
    ("codecs/key_value.py", "codec._decode_bytes"),
    ("values/message_id.py", "ours._identity"),
    ("values/message_id.py", "ours._order"),
    ("message.py", "message._call"),
    ("message.py", "message._count"),
    ("message.py", "message._entry"),
    ("message.py", "message._id"),
    ("message.py", "message._raw"),
    ("message.py", "message._schema"),
    ("consumer/consumer.py", "message._delivery_number"),
    ("consumer/consumer.py", "message._entry"),
    ("consumer/consumer.py", "message._index"),
    ("eventloop/process.py", "task._log_destroy_pending"),
    ("worker/abandoned_tasks.py", "asyncio._unregister_task"),
    ("worker/loop_watchdog.py", "sys._current_frames"),
    ("eventloop/awaitables.py", "function._is_coroutine"),
    ("eventloop/awaitables.py", "asyncio.coroutines._is_coroutine"),
    ("transport/stock/cpp_calls.py", "asyncio._get_running_loop"),
    ("transport/stock/cpp_ids.py", "message_id._msg_id"),
    ("transport/stock/client_config.py", "given._service_info"),
    ("transport/stock/dual_exceptions.py", "PulsarException._raised_as"),
    ("transport/versioned/versioned_messages.py", "self._schema._decode_bytes"),
    ("transport/stock/stock_transport.py", "client._client"),
    ("spark/triage/output_files.py", "spark.sparkContext._jsc"),
    ("spark/triage/output_files.py", "spark.sparkContext._jvm"),
    ("worker/drain_signals.py", "os._exit"),
    ("worker/drain_signals.py", "sys._current_frames"),
    ("cli/demo/killed_nack.py", "os._exit"),
    ("cli/demo/stock_side.py", "pulsar.MessageId(-1, ledger + 1, entry, -1)._msg_id"),
}


# An interface whose methods get objects of the floors above. It imports them for types only.
TYPES_ABOVE = {
    "observability/observer.py": {
        "consumer/consumer.py",
        "consumer/events.py",
        "producer.py",
        "worker/worker.py",
    },
}


def module_of(name: str) -> str:
    parts = ["pulsar_encore", *name.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(name): name for name in NAMES}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in zip(NAMES, FILES, strict=True)}


def imports(name: str) -> Iterator[tuple[str, int]]:
    """Yield (module, line) for each import of a file; an imported submodule is a module, too."""
    package = ("pulsar_encore", *Path(name).parent.parts)
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield (inner if inner in MODULES or inner.endswith("_pb2") else module), node.lineno


def own_imports(name: str) -> Iterator[tuple[str, int]]:
    """Yield (file, line) for each import of a file of this package."""
    for module, line in imports(name):
        if name in TYPES_ABOVE and MODULES.get(module) in TYPES_ABOVE[name]:
            continue
        if module in MODULES and MODULES[module] != name:
            yield MODULES[module], line


def floor_of(name: str) -> int:
    matches = [
        (len(each), at)
        for at, floor in enumerate(FLOORS)
        for each in floor
        if name == each or (each.endswith("/") and name.startswith(each))
    ]
    assert matches, f"{name} is on no floor: add it to FLOORS"
    return max(matches)[1]


@pytest.mark.parametrize("name", NAMES)
def test_imports_point_down(name: str) -> None:
    upward = [
        f"{name}:{line} imports {other}, which is on a floor above (FLOORS): move the code, or "
        "pass it as an argument"
        for other, line in own_imports(name)
        if floor_of(other) > floor_of(name)
    ]
    assert not upward, "\n".join(upward)


def test_every_entry_of_a_floor_exists() -> None:
    for floor in FLOORS:
        for each in floor:
            assert any(name == each or name.startswith(each) for name in NAMES), each


def test_no_files_import_each_other_in_a_circle() -> None:
    below = {name: {other for other, _ in own_imports(name)} for name in NAMES}
    while free := [name for name, others in below.items() if not others]:
        for name in free:
            del below[name]
        for others in below.values():
            others.difference_update(free)
    assert below == {}, "these are in a circle, or import from one"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(PURE)])
def test_the_pure_parts_are_pure(name: str) -> None:
    for module, line in imports(name):
        if (name, module) not in IMPURE_ALLOWED:
            assert module.split(".")[0] not in IMPURE, f"line {line} imports {module}"


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(NATIVE_ALLOWED)])
def test_only_the_stock_transport_imports_the_cpp_client(name: str) -> None:
    for module, line in imports(name):
        assert module.split(".")[0] not in NATIVE, f"line {line} imports {module}"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("letters/")])
def test_letters_import_only_values(name: str) -> None:
    """Not `Message` and not the core, because Spark writes and reads letters with rows."""
    needed = (
        "letters/",
        "errors/",
        "values/message_id.py",
        "values/outgoing_message.py",
        "values/topic_names.py",
    )
    for other, line in own_imports(name):
        assert other.startswith(needed), f"line {line} imports {other}"


def is_private(name: str) -> bool:
    # `_replace` of a named tuple is public, and `_check` tests invariants for the tests.
    public = ("_replace", "_check")
    return name.startswith("_") and not name.startswith("__") and name not in public


def own_attributes(tree: ast.Module) -> set[str]:
    """Return the private attributes and functions that a file defines."""
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) in ("self", "cls"):
                own.add(node.attr)
        elif isinstance(node, (ast.AnnAssign, ast.Assign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            own.update(each.id for each in targets if isinstance(each, ast.Name))
    return {name for name in own if is_private(name)}


OWN = {name: own_attributes(tree) for name, tree in TREES.items()}


def reaches(name: str) -> Iterator[tuple[str, int]]:
    """Yield (expression, line) for each private name of another file that a file uses.

    A private attribute of an object other than `self` is allowed if only this file defines it,
    because the object then belongs to this file. If several files define it, the list decides.
    """
    others = {attribute for other, own in OWN.items() if other != name for attribute in own}
    own = OWN[name] - others
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            if ast.unparse(node.value) not in ("self", "cls", "super()"):  # or inherited
                yield ast.unparse(node), node.lineno
        elif isinstance(node, ast.ImportFrom):
            if node.level or (node.module or "").startswith("pulsar_encore"):
                for alias in node.names:
                    if is_private(alias.name):
                        yield alias.name, node.lineno


@pytest.mark.parametrize("name", NAMES)
def test_private_names_are_used_in_their_file_only(name: str) -> None:
    reached = [
        f"{name}:{line} uses {expression}, private to another file: make it public, or add a method"
        for expression, line in reaches(name)
        if (name, expression) not in PRIVATE_ALLOWED
    ]
    assert not reached, "\n".join(reached)


def test_every_allowed_private_name_is_used() -> None:
    found = {(name, expression) for name in NAMES for expression, _ in reaches(name)}
    assert found >= PRIVATE_ALLOWED


def test_all_kinds_of_imports_are_found() -> None:
    seen = {module for name in NAMES for module, _ in imports(name)}
    assert {"asyncio", "_pulsar", "pulsar_encore.core.entry", "pulsar_encore.errors"} <= seen
    types_only = dict.fromkeys(other for other, _ in own_imports("message.py"))
    assert "core/entry.py" in types_only, "imports for types count"
