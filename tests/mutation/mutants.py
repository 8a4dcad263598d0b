"""Small wrong edits of a module's source, one at a time, as a person could make them.

A bound is off by one, a test is inverted, ``and`` stands for ``or``, a statement or result is missing, a number or key
is another. Texts for people, log lines, types, assertions, decorators and docstrings are not edited.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("agent", "caller", "fleet", "request", "runtime", "tape", "wire")
COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
KEYED = {"get", "pop", "startswith", "endswith", "removeprefix", "removesuffix", "split", "rsplit", "partition"}
"""Calls whose first argument is a key and not a text for people."""
TYPED = {"isinstance": 1, "issubclass": 1, "cast": 0}
"""Calls with a type among their arguments, and its place."""
LOGS = {"log", "_log", "logger", "LOG"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit: the bytes from ``start`` to ``end`` become ``text``. ``scope``: the function or class, or ``""``."""

    file: str
    scope: str
    line: int
    start: int
    end: int
    text: str
    before: str
    number: int
    """Counts equal edits of one scope from 0."""

    @property
    def key(self) -> str:
        """Stays the same when other lines of the file change."""
        same = f" #{self.number}" if self.number else ""
        return f"{self.file} | {self.scope} | {self.before} -> {self.text}{same}"

    def rank(self, seed: int) -> str:
        """Its place in the order of a seed."""
        return hashlib.sha256(f"{seed} {self.key}".encode()).hexdigest()

    def applied(self, source: bytes) -> bytes:
        """The edited source."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def files_of(top: Path) -> list[str]:
    """The modules that are edited, relative to the top of the tree."""
    paths = (path for package in PACKAGES for path in (top / "fleetsim" / package).rglob("*.py"))
    return sorted(path.relative_to(top).as_posix() for path in paths)


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """All edits of one module, in the order of its lines."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: Counter[tuple[str, str, str]] = Counter()
    mutants = []
    for scope, node, text in _edits(ast.parse(source), "", key=False):
        assert isinstance(node, ast.stmt | ast.expr)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(ast.unparse(node).split())
        mutants.append(Mutant(file, scope, node.lineno, start, end, text, before, seen[scope, before, text]))
        seen[scope, before, text] += 1
    return mutants


def _edits(node: ast.AST, scope: str, *, key: bool) -> Iterator[tuple[str, ast.AST, str]]:
    """(scope, the node to replace, its new source). ``key``: a text here is a key of the program."""
    match node:
        case ast.stmt():
            yield from ((scope, node, text) for text in _of_statement(node))
        case ast.expr():
            yield from ((scope, node, f"({text})") for text in _of_expression(node, key=key))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = f"{scope}.{node.name}".lstrip(".")
    for child, its_key in _children(node):
        if isinstance(child, ast.expr) and isinstance(node, ast.If | ast.While | ast.comprehension):
            negated = not isinstance(child, ast.Compare | ast.UnaryOp | ast.Constant)
            if negated and child is not getattr(node, "iter", None) and child is not getattr(node, "target", None):
                yield scope, child, f"(not ({ast.unparse(child)}))"
        yield from _edits(child, scope, key=its_key)


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """The parts of a node that are edited, and whether a text there is a key."""
    left_out: list[object] = [getattr(node, name, None) for name in ("annotation", "returns", "slice_type")]
    left_out += getattr(node, "decorator_list", [])
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.If(test=ast.Name("TYPE_CHECKING")):
            return
        case ast.Expr(value=ast.Constant()):
            return  # a docstring
        case ast.Expr(value=ast.Call(func=function)) if LOGS & set(ast.unparse(function).split(".")):
            return
        case ast.Raise(exc=ast.Call()):
            return  # a message
        case ast.AnnAssign() if "TypeAlias" in ast.unparse(node.annotation):
            return
        case ast.Call():
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in TYPED and len(node.args) == 2:
                left_out.append(node.args[TYPED[called]])
    for child in ast.iter_child_nodes(node):
        if child in left_out or isinstance(getattr(child, "ctx", None), ast.Store | ast.Del):
            continue
        first = isinstance(node, ast.Call) and child in node.args[:1] and called in KEYED
        in_dict = isinstance(node, ast.Dict) and child in node.keys
        in_subscript = isinstance(node, ast.Subscript) and child is node.slice
        yield child, first or in_dict or in_subscript or isinstance(node, ast.Compare | ast.Set)


def _of_statement(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Expr(value=ast.Call(func=function)) if LOGS & set(ast.unparse(function).split(".")):
            return
        case ast.Raise(exc=ast.Call(func=ast.Name("AssertionError")) | ast.Name("AssertionError")):
            return
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.AugAssign(target=target, op=op, value=value):
            yield "pass"
            if type(op) in COUNTED:
                yield ast.unparse(ast.AugAssign(target, COUNTED[type(op)](), value))
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"


def _of_expression(node: ast.expr, *, key: bool) -> Iterator[str]:
    match node:
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() | float() as number):
            yield repr(number + 1 if abs(number) <= 2 else number * 2)
        case ast.Constant(value=str() as text) if key and text:
            yield repr(f"{text}X")
        case ast.Constant(value=bytes() as raw) if key and raw:
            yield repr(raw + b"X")
        case ast.Compare(left, ops, comparators):
            for place, op in enumerate(ops):
                for other in COMPARED[type(op)]:
                    yield ast.unparse(ast.Compare(left, [*ops[:place], other(), *ops[place + 1 :]], comparators))
        case ast.BoolOp(op, values):
            yield ast.unparse(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield ast.unparse(node.operand)
        case ast.BinOp(left, op, right) if type(op) in COUNTED and not _is_text(left) and not _is_text(right):
            yield ast.unparse(ast.BinOp(left, COUNTED[type(op)](), right))
        case ast.IfExp(test, body, orelse):
            yield ast.unparse(ast.IfExp(test, orelse, body))
        case ast.Call(ast.Name(name), args, keywords) if name in SWAPPED:
            yield ast.unparse(ast.Call(ast.Name(SWAPPED[name]), args, keywords))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
