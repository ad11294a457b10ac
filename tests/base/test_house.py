"""The house rules that no linter checks: folders, functions, docstrings, records, circles of imports.

A record of more than eight fields has its reason in large_records.yaml, and there shall be no more of them.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest
import yaml
from support.source_trees import ROOT, SOURCES, outlines

MOST_FILES, MOST_LINES, MOST_PARAMETERS = 15, 80, 8
# the signature of pyverbs' MREx, which programs call so
AS_PYVERBS = ("verbs/pyverbs/mr.py",)
NO_OPENING = {"What", "Whether", "How", "Of", "As", "Where", "When", "Who", "Which"}


def functions(folder: Path = SOURCES) -> Iterator[tuple[str, ast.FunctionDef]]:
    for path, found in outlines(folder).items():
        for node in found:
            if isinstance(node, ast.FunctionDef):
                yield str(path.relative_to(folder)), node


def is_command(node: ast.FunctionDef) -> bool:
    return any("command" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_a_folder_groups_few_files():
    crowded = {
        str(folder.relative_to(SOURCES)): count
        for folder in SOURCES.rglob("*")
        if folder.is_dir()
        and (count := len([p for p in folder.glob("*.py") if p.stem != "__init__"])) > MOST_FILES
    }
    assert set(crowded) <= {"verbs/pyverbs"}, crowded


def test_functions_can_be_seen_whole():
    long = [
        f"{file}: {node.name}"
        for file, node in functions()
        if not file.startswith("kernel/")
        and (node.end_lineno or 0) - node.lineno >= MOST_LINES
        and not is_command(node)
    ]
    assert long == []


def test_a_function_takes_few_parameters():
    many = [
        f"{file}: {node.name}"
        for file, node in functions()
        if len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) > MOST_PARAMETERS
        and not file.startswith(("kernel/", "cli/", *AS_PYVERBS))
    ]
    assert many == []


@pytest.mark.parametrize("folder", [SOURCES, ROOT / "tests", ROOT / "benchmarks"], ids=lambda path: path.name)
def test_a_docstring_begins_with_a_verb_or_a_noun(folder):
    odd = []
    for file, node in functions(folder):
        first = (ast.get_docstring(node, clean=False) or "").split(maxsplit=1)
        if first and first[0].rstrip(",:") in NO_OPENING:
            odd.append(f"{file}: {node.name}")
    assert odd == []


def _folder(room: str) -> Path:
    return ROOT / "src" / room.replace(".", "/")


def test_mypy_passes_over_nothing_but_compiled_code():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    ignored = {
        module for one in settings["overrides"] if one.get("ignore_errors") for module in _listed(one["module"])
    }
    for pattern in [module for module in ignored if module.endswith(".*")]:
        room = pattern.removesuffix(".*")
        ignored.remove(pattern)
        ignored.update({room} | {f"{room}.{one.stem}" for one in _folder(room).glob("[!_]*.py")})
    compiled = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for path in (SOURCES / "kernel").rglob("*.py")
        if re.search(r"^from fabrictwin\.kernel\.jit\.decorators import|numba\.njit", path.read_text(), re.M)
    }
    assert ignored <= compiled, sorted(ignored - compiled)


def _listed(module: str | list[str]) -> list[str]:
    return [module] if isinstance(module, str) else module


# ---------------------------------------------------------------------- records

MOST_FIELDS = 8
ON_THE_WIRE = {"row", "bits", "array", "raw"}

LARGE: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("large_records.yaml").read_text())


@cache
def large_records() -> set[str]:
    """Return `file:class` of dataclasses, models and tuples with more fields than a record should have."""
    found = set()
    for path, inside in outlines(SOURCES).items():
        for node in inside:
            if not isinstance(node, ast.ClassDef) or "Protocol" in map(ast.unparse, node.bases):
                continue
            if sum(map(_fields, node.body)) > MOST_FIELDS:
                found.add(f"{path.relative_to(SOURCES)}:{node.name}")
    return found


def _fields(statement: ast.stmt) -> int:
    """Return how many fields a statement of a class declares: with its type, or by places on the wire."""
    if isinstance(statement, ast.AnnAssign):
        return int("ClassVar" not in ast.unparse(statement.annotation))
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        names = statement.targets[0]
        if ast.unparse(statement.value.func) in ON_THE_WIRE:
            return len(names.elts) if isinstance(names, ast.Tuple) else 1
    return 0


def listed(reason: str) -> set[str]:
    return {f"{file}:{name}" for file, names in LARGE[reason].items() for name in names.split()}


def test_a_record_has_few_fields_or_a_reason():
    unknown = large_records() - set().union(*map(listed, LARGE))
    assert unknown == set(), "group the fields by concept"


@pytest.mark.parametrize("reason", LARGE)
def test_what_has_been_grouped_is_taken_off_the_list(reason):
    assert listed(reason) <= large_records()


# ---------------------------------------------------------------------- imports


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
    """No file imports another that, by whatever way, imports it, for types alone included."""
    files = {module_name(path): inside for path, inside in outlines(SOURCES).items()}
    assert len(files) > 300
    graph = nx.DiGraph()
    for name, inside in files.items():
        graph.add_edges_from((name, other) for other in imported(inside, set(files)) if other != name)
    assert graph.number_of_edges() > 1000
    circles = [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    assert circles == []
