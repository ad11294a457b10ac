"""The house rules that no linter checks: folders, functions, docstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "fabrictwin"
MOST_FILES, MOST_LINES, MOST_PARAMETERS = 15, 80, 8
# the signature of pyverbs' MREx, which programs call so
AS_PYVERBS = ("verbs/pyverbs/mr.py",)
NO_OPENING = {"What", "Whether", "How", "Of", "As", "Where", "When", "Who", "Which"}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield str(path.relative_to(SOURCES)), node


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


def test_a_docstring_begins_with_a_verb_or_a_noun():
    odd = [
        f"{file}: {node.name}"
        for file, node in functions()
        if (ast.get_docstring(node) or " ").split()[:1]
        and (ast.get_docstring(node) or "").split()[0] in NO_OPENING
    ]
    assert odd == []
