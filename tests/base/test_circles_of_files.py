"""Imports between files: no file imports another that, by whatever way, imports it, for types alone included."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx as nx

import fabrictwin

ROOT = Path(fabrictwin.__file__).parent


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(("fabrictwin", *path.relative_to(ROOT).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole in known else node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & known.keys()


def test_no_circle_of_files():
    known = modules()
    assert len(known) > 300
    graph = nx.DiGraph()
    for name, path in known.items():
        graph.add_edges_from((name, other) for other in imported(path, known) if other != name)
    assert graph.number_of_edges() > 1000
    circles = [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    assert circles == []
