"""Imports between files: no file imports another that, by whatever way, imports it, for types alone included."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx as nx
from support.source_trees import SOURCES, outlines


def module_name(path: Path) -> str:
    return ".".join(("fabrictwin", *path.relative_to(SOURCES).with_suffix("").parts)).removesuffix(".__init__")


def imported(inside: tuple[ast.stmt, ...], known: set[str]) -> set[str]:
    names = set()
    for node in inside:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole in known else node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & known


def test_no_circle_of_files():
    files = {module_name(path): inside for path, inside in outlines(SOURCES).items()}
    assert len(files) > 300
    graph = nx.DiGraph()
    for name, inside in files.items():
        graph.add_edges_from((name, other) for other in imported(inside, set(files)) if other != name)
    assert graph.number_of_edges() > 1000
    circles = [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    assert circles == []
