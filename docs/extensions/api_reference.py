"""Sphinx extension for the API reference: public names, Markdown in docstrings, signatures."""

from __future__ import annotations

import builtins
import inspect
import re
from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

#: Modules whose public names the API reference documents. The first that has an object names it.
PUBLIC_MODULES = (
    "pulsar_encore",
    "pulsar_encore.state",
    "pulsar_encore.deadletters",
    "pulsar_encore.evacuation",
    "pulsar_encore.testing",
    "pulsar_encore.spark",
    "pulsar_encore.spark.triage",
    "pulsar_encore.devbroker",
)
#: Classes that applications do not create themselves, so their parameters are left out.
CREATED_ELSEWHERE = {
    f"pulsar_encore.{name}"
    for name in (
        "Consumer",
        "Producer",
        "Reader",
        "Lease",
        "Message",
        "GenericRecord",
        "MessageBatch",
        "Transaction",
    )
}

#: Members that serve other parts of the package, by class.
INTERNAL_MEMBERS = {
    "Authentication": "auth",
    "AuthenticationOauth2": "refused",
    "AuthenticationToken": "waiting",
    "AutoConsume": "null needs_writer check_use written_decoder",
    "BatchFailure": "checked_errors",
    "Broker": "service",
    "Breaker": "kinds within_ms pause_ms matches",
    "Consumer": "watch_losses close_soon abandon",
    "Transaction": "abandon close",
    "ConsumerDeadLetterPolicy": "policy",
    "ConsumerKeySharedPolicy": "policy",
    "CryptoKeyReader": "cryptoKeyReader",
    "EvacuationReport": "move lose refuse",
    "Halt": "begin check",
    "HourGroup": "add",
    "KeyValue": "needs_writer native_only encode_with_key decode_payload written_decoder",
    "LetterGroup": "add",
    "MemoryTransport": "catalogue consumers subscribe create_producer topics_matching schema_of "
    "latest_schema topic_partitions begin_transaction join_transaction end_transaction shutdown "
    "close",
    "Message": "of_entry of_reader",
    "MessageId": "wrap wrap_bytes with_topic first_chunk",
    "Producer": "abandon",
    "PulsarDataSource": "name schema reader streamReader writer streamWriter",
    "PulsarProgressListener": "onQueryStarted onQueryIdle onQueryProgress onQueryTerminated",
    "Reader": "abandon",
    "ReplayReport": "refuse select unselect",
    "RetryPolicy": "letters_after_ms max_age_ms delays reject_kinds",
    "ServiceInfo": "wrap",
    "SubscribeOptions": "keywords",
    "VirtualClockLoop": "interrupt_deadlock shutdown_default_executor",
    "Worker": "unfinished",
}


def public_names() -> dict[str, str]:
    """Return the public name of each public object, by its full name and by its short name."""
    found: dict[str, str] = {}
    for module_name in PUBLIC_MODULES:
        module = import_module(module_name)
        for name in module.__all__:
            each = getattr(module, name)
            public = f"{module_name}.{name}"
            if name[0].isupper():  # `drain` and `message` are parameters more often than functions
                found.setdefault(name, public)
            if hasattr(each, "__qualname__"):
                found.setdefault(f"{each.__module__}.{each.__qualname__}", public)
    return found


def resolve_reference(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Resolve a reference by the name where the class is defined, or by its name alone."""
    if node.get("refdomain") != "py":
        return None
    names = app.public_names  # type: ignore[attr-defined]
    target, rest = str(node["reftarget"]).removesuffix("()"), ""
    while target and target not in names:
        target, _, last = target.rpartition(".")
        rest = f".{last}{rest}"
    domain = env.domains.python_domain
    if target:
        found = domain.resolve_xref(
            env, node["refdoc"], app.builder, "obj", names[target] + rest, node, content
        )
        if found is not None:
            return found
    return content if node["reftype"] == "obj" else None


def explained(lines: list[str], section: str) -> set[str]:
    """Return the names that a section of a docstring explains."""
    text = "\n".join(lines).partition(f"\n{section}:\n")[2]
    own = re.split(r"^\S", text, maxsplit=1, flags=re.MULTILINE)[0]
    return set(re.findall(r"^ {4}(\w+):", own, re.MULTILINE))


def is_plain(kind: type, name: str) -> bool:
    """Return True for an attribute without code and docstring of its own."""
    found = inspect.getattr_static(kind, name, None)
    return not isinstance(found, property) and not callable(found)


def use_rst(app: Sphinx, kind: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn the Markdown of a docstring into reStructuredText, before napoleon reads it."""
    if kind in ("class", "exception"):
        # Attributes that the docstring explains are not listed a second time.
        hidden = explained(lines, "Attributes")
        hidden.update(each for each in explained(lines, "Args") if is_plain(obj, each))
        hidden.update(INTERNAL_MEMBERS.get(name.rpartition(".")[2], "").split())
        app.hidden = hidden  # type: ignore[attr-defined]
    found, in_code = [], False
    for line in lines:
        fence = re.fullmatch(r"( *)```(\w*)", line)
        if fence and not in_code:
            found += [f"{fence[1]}.. code-block:: {fence[2] or 'text'}", ""]
        elif fence:
            found.append("")
        else:
            found.append(f"    {line}" if in_code and line.strip() else line)
        in_code ^= bool(fence)
    lines[:] = found


def type_attributes(
    app: Sphinx, kind: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Show the types of attributes in their signatures, where napoleon adds a field."""
    found: list[str] = []
    at = 0  # behind the last attribute directive
    for line in lines:
        if line.startswith(".. attribute:: "):
            at = len(found) + 1
        elif at and line.startswith("   :type: "):
            found.insert(at, line)
            continue
        found.append(line)
    lines[:] = found


def leave_builtins(app: Sphinx, doctree: nodes.document) -> None:
    """Keep types such as `bytes` from becoming links to attributes with the same name."""
    for each in list(doctree.findall(pending_xref)):
        if each.get("reftype") == "class" and each["reftarget"] in vars(builtins):
            each.replace_self(nodes.Text(each["reftarget"]))


def is_hidden(
    app: Sphinx, kind: str, name: str, obj: Any, skipped: bool, options: Any
) -> bool | None:
    return True if name in app.hidden else None  # type: ignore[attr-defined]


def edit_signature(
    app: Sphinx,
    kind: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str, str | None] | None:
    is_kind = kind in ("class", "exception")
    if is_kind and (name in CREATED_ELSEWHERE or (signature or "").startswith("(*args")):
        return "", None
    if not signature:
        return None
    # Constants show their values. `<factory>` of a dataclass is no Python, so that the types behind
    # it would not be parsed.
    module = vars(import_module(obj.__module__))
    shown = re.sub(
        r"(?<== )_?[A-Z][A-Z_]+\b(?!\.)",
        lambda constant: repr(module[constant[0]]) if constant[0] in module else constant[0],
        signature,
    )
    return shown.replace("<factory>", "..."), returns


def setup(app: Sphinx) -> dict[str, bool]:
    app.public_names = public_names()  # type: ignore[attr-defined]
    app.hidden = set[str]()  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", use_rst, priority=400)
    app.connect("autodoc-process-docstring", type_attributes, priority=600)
    app.connect("doctree-read", leave_builtins)
    app.connect("autodoc-skip-member", is_hidden)
    app.connect("missing-reference", resolve_reference)
    app.connect("autodoc-process-signature", edit_signature)
    return {"parallel_read_safe": True}
