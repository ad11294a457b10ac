"""JSON that tools print, whole: RAS, config_db, DCGM, interfaces of `ip -j`, files of sysfs by their paths."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from fabrictwin.diagnosis.evidence import Sink
from fabrictwin.diagnosis.readers import json_lines
from fabrictwin.diagnosis.readers.fabric import ethernet, sonic
from fabrictwin.diagnosis.readers.host import dcgm, interfaces, kubernetes_objects
from fabrictwin.diagnosis.readers.job import perftest, ras

DEEPEST, MOST_NODES = 12, 200_000
# of `rdma resource`: queue pairs and what else has states that are none of ports
_RESOURCES = frozenset(("lqpn", "cqn", "mrn", "pdn", "ctxn", "srqn", "mode"))
# objects of Kubernetes' API, whose first key the version is
OPENS_YAML = re.compile(rb"(?:---\s*\n)?apiVersion: [\w./-]+\s*\n")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# what json's and PyYAML's constructors raise for values that are none: `int` of an empty text, dates that are not
_UNREADABLE = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError)
_LISTS = re.compile(r"\[\n\s+([^\[\]{}]{1,2000}?)\n\s*\]")
FEW_ROWS = 3  # of a document that was written without ends of lines
MOST_DOCUMENTS, LARGEST_YAML = 1_000, 32 << 20
MOST_COUNTERS = 500  # of a device


def read(data: bytes, sink: Sink) -> str:
    """The family of a JSON document, taken; empty where it is none that is known."""
    try:
        parsed = json.loads(perftest.mended(data))
    except (ValueError, RecursionError):
        return ""
    sink.number = 1
    if isinstance(parsed, dict) and perftest.Perftest(sink).read_json(parsed):
        return "perftest"
    if ras.read_json(parsed, sink):
        return "nccl-ras"
    if sonic.read_config(parsed, sink):
        return "config_db"
    if isinstance(parsed, dict) and dcgm.read_json(parsed, sink):
        return "dcgm"
    devices = [
        one
        for one in _objects(parsed)
        if "ifname" in one and isinstance(one.get("port"), int) and not _RESOURCES & set(one)
    ]
    for one in devices:
        ethernet.Rdma(sink).line(_as_rdma_prints(one))
    if devices:
        return "rdma"
    links = [one for one in _objects(parsed) if "ifname" in one and isinstance(one.get("flags"), list)]
    for one in links:
        interfaces.keep_state(sink, str(one["ifname"])[:40], [str(flag) for flag in one["flags"]])
    return "ip-link" if links else ""


def _as_rdma_prints(device: Mapping[str, Any]) -> str:
    """Return the line of a device's port or its counters: `rdma -j` has the same words as keys."""
    told = [(key, value) for key, value in list(device.items())[:MOST_COUNTERS] if isinstance(value, str | int)]
    words = [f"{key} {str(value)[:40]}" for key, value in told if key not in ("ifindex", "ifname", "port")]
    return f"link {str(device['ifname'])[:40]}/{device['port']} {' '.join(words)}"


def printed_lines(data: bytes) -> list[str]:
    """Lines that tools would print of a document: files of sysfs by their paths, objects of Kubernetes.

    Of JSON, or of YAML as kubectl writes it. Empty where the document is none of these.
    """
    parsed = _parsed(data)
    if isinstance(parsed, Mapping) and any(re.match(r"/sys/\w+/", str(key)) for key in list(parsed)[:9]):
        return [f"{path}:{str(value).strip()[:200]}" for path, value in list(parsed.items())[:MOST_NODES]]
    return kubernetes_objects.lines_of(parsed) or json_lines.health_events(parsed)


def spread(data: bytes) -> bytes:
    """Return documents without ends of lines, one or one a line, with a value to a row, as tools print them."""
    if OPENS_YAML.match(data):
        return data
    lines = data.strip().split(b"\n", MOST_DOCUMENTS)
    documents = [_parsed(data)] if len(lines) <= FEW_ROWS else []
    if documents == [None] or not documents:
        documents = [_parsed(line) for line in lines]
        if not all(isinstance(one, Mapping) for one in documents):
            return data
    text = "\n".join(json.dumps(one, indent=4) for one in documents)
    # a list of numbers or names is a value of its own
    return _LISTS.sub(lambda found: f"[{' '.join(found[1].split())}]", text).encode("utf-8", "replace")


def _parsed(data: bytes) -> Any:
    try:
        if not OPENS_YAML.match(data) or len(data) > LARGEST_YAML:
            return json.loads(data)
        text = data.decode("utf-8", "replace")
        return list(itertools.islice(yaml.load_all(text, Loader=LOADER), MOST_DOCUMENTS))
    except (*_UNREADABLE, yaml.YAMLError):
        return None


def _objects(parsed: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects within, outer ones first."""
    left, seen = [(parsed, 0)], 0
    while left and seen < MOST_NODES:
        node, depth = left.pop()
        seen += 1
        if isinstance(node, Mapping):
            yield node
        inside = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
        if depth < DEEPEST:
            left += [(one, depth + 1) for one in inside]
