"""Objects of Kubernetes' API (`kubectl get -o json`, `-o yaml`): what `kubectl describe` and `get` print of them.

Nodes (capacity, conditions), pods (states of containers, conditions) and events are told in the words that
kubectl's printers have for them, for the readers and mechanisms that know these. Types and fields are those of
k8s.io/api core/v1; a state's reason stands for the pod's as in kubectl's own table (pkg/printers/internalversion).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MOST_OBJECTS, LONGEST = 50_000, 2_000
# a condition of these is well where it is true; any other, the node problem detector's too, where it is false
_WELL = frozenset(("Ready", "ContainersReady", "Initialized", "PodScheduled", "PodReadyToStartContainers"))


def lines_of(parsed: Any) -> list[str]:
    """Lines that kubectl would print of an object or a list; empty where there is none of these kinds."""
    lines: list[str] = []
    for number, one in enumerate(_objects(parsed)):
        if number < MOST_OBJECTS:
            lines += [line[:LONGEST].replace("\n", " ") for line in _KINDS[str(one["kind"])](one)]
    return lines


def _objects(parsed: Any) -> Iterator[Mapping[str, Any]]:
    many = parsed if isinstance(parsed, list) else [parsed]
    for one in many:
        if not isinstance(one, Mapping):
            continue
        if str(one.get("kind", "")).endswith("List"):
            items = one.get("items")
            kind = str(one["kind"]).removesuffix("List")
            for item in items if isinstance(items, list) else ():
                if isinstance(item, Mapping) and str(item.get("kind", kind)) in _KINDS:
                    yield {"kind": kind} | dict(item)
        elif str(one.get("kind")) in _KINDS and "apiVersion" in one:
            yield one


def _part(node: Any, *names: str) -> Mapping[str, Any]:
    for name in names:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}


def _list(node: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = node.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _text(node: Mapping[str, Any], name: str) -> str:
    found = node.get(name)
    return str(found) if isinstance(found, str | int) else ""


def _node(one: Mapping[str, Any]) -> Iterator[str]:
    name, status = _text(_part(one, "metadata"), "name"), _part(one, "status")
    yield f"  Hostname:    {name}"
    for part in ("capacity", "allocatable"):
        yield f"{part.title()}:"
        yield from (f"  {key}:  {value}" for key, value in _part(status, part).items())
    yield from _conditions(status)
    if _part(one, "spec").get("unschedulable") is True:
        yield f"{name}   Ready,SchedulingDisabled   <none>"


def _conditions(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield conditions that are not as they should be."""
    for one in _list(status, "conditions"):
        kind, state = _text(one, "type"), _text(one, "status")
        if state and state != ("True" if kind in _WELL else "False"):
            yield f"  {kind}   {state}   {_text(one, 'reason')}   {_text(one, 'message')}"


def _pod(one: Mapping[str, Any]) -> Iterator[str]:
    name, status = _text(_part(one, "metadata"), "name"), _part(one, "status")
    containers = [*_list(status, "initContainerStatuses"), *_list(status, "containerStatuses")]
    reason = _text(status, "reason") or _text(status, "phase")
    said = [_text(status, "message")]
    for container in containers:
        for state in ("state", "lastState"):
            for how in ("waiting", "terminated"):
                found = _part(container, state, how)
                code, own = _text(found, "exitCode"), _text(found, "reason")
                if found and code != "0":
                    reason = (own or f"ExitCode:{code}") if state == "state" else reason
                    said += [f"{own} (exit code {code})" if code else own, _text(found, "message")]
    ready = sum(container.get("ready") is True for container in containers)
    restarts = max((int(_text(one, "restartCount") or 0) for one in containers), default=0)
    yield f"{name}   {ready}/{len(containers)}   {reason}   {restarts}   <none>"
    yield from (f"  {line}" for line in dict.fromkeys(said) if line)
    if _text(status, "phase") in ("Pending", "Failed", "Unknown"):
        yield from _conditions(status)


def _event(one: Mapping[str, Any]) -> Iterator[str]:
    about = _part(one, "involvedObject") or _part(one, "regarding")
    said = _text(one, "message") or _text(one, "note")
    what = f"{_text(about, 'kind').lower()}/{_text(about, 'name')}"
    yield f"{_text(one, 'type')}   {_text(one, 'reason')}   {what}   {said}"


_KINDS = {"Node": _node, "Pod": _pod, "Event": _event}
