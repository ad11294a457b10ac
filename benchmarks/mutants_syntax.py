"""Mutants of a Python file: one small change of its syntax tree each, spliced into the text in place.

Left alone are docstrings, annotations, decorators, f-strings, what is raised, what is logged, `__repr__` and
`__str__`, and what stands under `if TYPE_CHECKING`: changes there alter what is said and not what is done. Hints
to the processor stay too, since no result depends on them. A mutant has as many lines as its file.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
NEGATION = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.MatMult: ast.Mult,
}
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
# in the packet kernel: no more than what the processor is told to load soon
HINTS = ("prefetch", "fetch_named", "fetch_behind", "fetch_message", "fetch_last", "fetch_output", "fetch_way_out")
SAID = re.compile(rf"^(_?log(ger|ging)?|warnings?|_warn|warn|print|{'|'.join(HINTS)})\b")
SILENT = {"__repr__", "__str__", *HINTS}


@dataclass(frozen=True)
class Mutant:
    """One change of one file: bytes `start` to `end` of its UTF-8 text become `text`."""

    room: str
    file: str  # relative to the checkout
    line: int
    change: str  # the kind of change
    before: str  # the source of what changes, on one line
    after: str
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """A name that holds while the file stays as it is."""
        return hashlib.sha256(f"{self.file} {self.start} {self.end} {self.text}".encode()).hexdigest()[:12]

    def applied(self, source: bytes) -> bytes:
        """Return the file's text with the change made."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_of(path: Path, checkout: Path, room: str) -> list[Mutant]:
    """Return every mutant of a file, in order of its text."""
    source = path.read_bytes()
    finder = _Finder(source, str(path.relative_to(checkout)), room)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda m: (m.start, m.end, m.text))


class _Finder(ast.NodeVisitor):
    """Walks a file's tree and collects its mutants."""

    def __init__(self, source: bytes, file: str, room: str) -> None:
        self.source, self.file, self.room = source, file, room
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Mutant] = []
        self.constants = 0
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self.bound: list[Counter[str]] = []

    def add(self, change: str, node: ast.AST, new: ast.AST | str) -> None:
        """Note a mutant that has `new` where `node` stands; an expression comes in brackets."""
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        text = new if isinstance(new, str) else ast.unparse(new)
        more = "\n" * (node.end_lineno - node.lineno)
        whole = f"{text}{more}" if isinstance(node, ast.stmt) else f"({text}{more})"
        before = " ".join(self.source[start:end].decode().split())
        self.found.append(Mutant(self.room, self.file, node.lineno, change, before, text, start, end, whole))

    # what is left alone

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in SILENT:
            return
        self.functions.append(node)
        self.bound.append(Counter(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and _stores(n)))
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self.functions.pop()
        self.bound.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 # a name of ast

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave text alone."""

    visit_Raise = visit_Import = visit_ImportFrom = visit_JoinedStr  # noqa: N815 # names of ast

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and "TypeAlias" not in ast.unparse(node.annotation):
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if ast.unparse(node.value) not in {"Literal", "Annotated", "Callable", "cast"}:
            self.generic_visit(node)

    # what is changed

    def visit_Compare(self, node: ast.Compare) -> None:
        for at, operator in enumerate(node.ops):
            for change, swap in (("boundary", BOUNDARY), ("negation", NEGATION)):
                other = swap.get(type(operator))
                if other is not None:
                    operators = [*node.ops[:at], other(), *node.ops[at + 1 :]]
                    self.add(change, node, ast.Compare(node.left, operators, node.comparators))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if any(_is_text(side) for side in (node.left, node.right)):
            return
        if not (isinstance(node.op, ast.BitOr) and _is_type_union(node)):
            self.add("arithmetic", node, ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self.add("and or", node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.add("not", node, node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self.constants += 1  # one more and one less, in turns; never below zero
            less = node.value > 0 and self.constants % 2 == 0
            self.add("constant", node, str(node.value - 1 if less else node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        if SAID.match(ast.unparse(node.func)):
            return
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if name in EXTREMES and (isinstance(function, ast.Name) or ast.unparse(function).startswith("np.")):
            renamed = ast.parse(ast.unparse(function)[: -len(name)] + EXTREMES[name], mode="eval").body
            self.add("min max", node, ast.Call(renamed, node.args, node.keywords))
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        value = node.value
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            return
        self.add("return", node, f"return {self._other_value(value)}")
        self.generic_visit(node)

    def _other_value(self, value: ast.expr) -> str:
        """Return the text of a wrong value of the right type, as far as can be seen; None otherwise."""
        returns = self.functions[-1].returns
        kind = "" if returns is None else ast.unparse(returns)
        text = ast.unparse(value)
        if kind == "bool" or isinstance(value, ast.Compare | ast.BoolOp) or _is_bool(value):
            return f"not ({text})"
        if kind in {"int", "float"} or ("/kernel/" in self.file and not isinstance(value, ast.Tuple)):
            return f"({text}) + 1"
        return "None"

    def visit_Assign(self, node: ast.Assign) -> None:
        if self.functions and all(self._is_kept_elsewhere(target) for target in node.targets):
            self.add("deletion", node, "pass")
        self.generic_visit(node)

    def _is_kept_elsewhere(self, target: ast.expr) -> bool:
        """Tell a target without whose assignment its name is still bound: to what it was before."""
        if isinstance(target, ast.Attribute | ast.Subscript):
            return True
        return isinstance(target, ast.Name) and self.bound[-1][target.id] > 1

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if not _is_text(node.value):
            other = ARITHMETIC[type(node.op)]()
            self.add("arithmetic", node, ast.AugAssign(node.target, other, node.value))
        self.add("deletion", node, "pass")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call) and self.functions and not SAID.match(ast.unparse(node.value.func)):
            self.add("deletion", node, "pass")
        self.generic_visit(node)


def _stores(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _is_bool(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, ast.Not)
    return isinstance(value, ast.Constant) and isinstance(value.value, bool)


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.JoinedStr) or (
        isinstance(value, ast.Constant) and isinstance(value.value, str | bytes)
    )


def _is_type_union(node: ast.BinOp) -> bool:
    """Tell `int | None` and its like: names of types begin with capitals or are built in."""
    return any(
        re.search(r"\b(None|str|int|float|bool|bytes|dict|list|tuple)\b", ast.unparse(n)) for n in _sides(node)
    )


def _sides(node: ast.BinOp) -> Iterator[ast.expr]:
    yield node.left
    yield node.right
