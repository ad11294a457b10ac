"""Records of more than eight fields: each has its reason, and there shall be no more of them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
import yaml
from support.source_trees import SOURCES, outlines

MOST_FIELDS = 8
ON_THE_WIRE = {"row", "bits", "array", "raw"}

LARGE: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("large_records.yaml").read_text())


@cache
def large_records() -> set[str]:
    """Return `file:class` of dataclasses, models and tuples with more fields than a record should have."""
    found = set()
    for path, inside in outlines().items():
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
