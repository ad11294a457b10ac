"""Outlines of the project's files, each parsed once in a process: their classes, functions and imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "fabrictwin"
KEPT = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Import, ast.ImportFrom)
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@cache
def outlines(folder: Path) -> dict[Path, tuple[ast.stmt, ...]]:
    """All classes, functions and imports of every Python file below a folder, outer before inner.

    Of a function's body only the first statement is left: whole trees of the project are hundreds of megabytes.
    """
    files = sorted(folder.rglob("*.py"))
    return {path: tuple(_outline(ast.parse(path.read_text(encoding="utf-8")))) for path in files}


def _outline(outer: ast.AST) -> Iterator[ast.stmt]:
    for block in BLOCKS:
        for node in getattr(outer, block, ()):
            if isinstance(node, KEPT):
                yield node
            yield from _outline(node)
    if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
        del outer.body[1:]
