"""Small wrong edits of a module's source, one at a time: what ``make mutation`` plants.

An edit is one a person could have made: a bound off by one, a test turned round, ``and`` for ``or``, a forgotten
statement, a missing result, another number or key. Not edited: wording (texts, log lines), types, assertions and
``raise AssertionError`` (they tell the type checker what is so), decorators and docstrings. Line numbers stay, so a
map of which test runs which line still holds in the edited source.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("caller", "agent", "wire", "runtime")
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
LOGS = {"log", "_log", "logger", "LOG"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit. ``lines`` are those of the statement that holds it; ``scope`` the function or class, or ``""``."""

    file: str
    scope: str
    kind: str
    line: int
    lines: tuple[int, int]
    start: int
    end: int
    text: str
    before: str
    after: str
    number: int
    outermost: int | None
    """The first line of the outermost function around it, decorators not counted; None: it runs at import."""
    names: tuple[str, ...]
    """What is defined by the statement, for edits that run at import."""

    @property
    def key(self) -> str:
        """What stays the same when other lines of the file change."""
        same = f" #{self.number}" if self.number else ""
        return f"{self.file} | {self.scope} | {self.before} -> {self.after}{same}"

    def rank(self, seed: int) -> str:
        """Its place in the order of a seed."""
        return hashlib.sha256(f"{seed} {self.key}".encode()).hexdigest()

    def applied(self, source: bytes) -> bytes:
        """The edited source."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def files_of(top: Path) -> list[str]:
    """The modules that are edited, relative to the top of the tree."""
    found = (path for package in PACKAGES for path in (top / "fleetsim" / package).rglob("*.py"))
    return sorted(path.relative_to(top).as_posix() for path in found)


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """All edits of one module, in the order of its lines."""
    return list(_Finder(file, source).found())


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.seen: Counter[tuple[str, str, str]] = Counter()

    def found(self) -> Iterator[Mutant]:
        yield from self._block(ast.parse(self.source).body, (), None)

    # ------------------------------------------------------------------ statements

    def _block(self, body: list[ast.stmt], scope: tuple[str, ...], outermost: int | None) -> Iterator[Mutant]:
        for place, statement in enumerate(body):
            if place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue  # a docstring
            yield from self._statement(statement, scope, outermost)

    def _statement(self, node: ast.stmt, scope: tuple[str, ...], outermost: int | None) -> Iterator[Mutant]:
        at = _At(scope, outermost, node)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
                    yield from self._expression(default, _At((*scope, node.name), outermost, default, (node.name,)))
                inside = outermost if outermost is not None else node.lineno
                yield from self._block(node.body, (*scope, node.name), inside)
            case ast.ClassDef():
                yield from self._block(node.body, (*scope, node.name), outermost)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert() | ast.Import() | ast.ImportFrom():
                return
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr() if _is_log(node.value):
                return
            case ast.Raise() if _is_unreachable(node):
                return
            case _:
                yield from self._own_edits(node, at)
                yield from self._parts(node, scope, outermost)

    def _own_edits(self, node: ast.stmt, at: _At) -> Iterator[Mutant]:
        match node:
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self._edit(at, node, "pass", "statement left out")
            case ast.Raise():
                yield self._edit(at, node, "pass", "statement left out")
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                yield self._edit(at, node, "return None", "result left out")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
                yield self._edit(at, node, "pass", "statement left out")
            case ast.Continue():
                yield self._edit(at, node, "break", "break for continue")
            case ast.Break():
                yield self._edit(at, node, "continue", "continue for break")
            case ast.If() | ast.While():
                head = _At(at.scope, at.outermost, node.test)
                if not isinstance(node.test, ast.Compare | ast.UnaryOp | ast.Constant):
                    yield self._edit(head, node.test, f"not ({ast.unparse(node.test)})", "condition turned round")
            case _:
                pass
        if isinstance(node, ast.AugAssign) and type(node.op) in COUNTED:
            other = ast.AugAssign(target=node.target, op=COUNTED[type(node.op)](), value=node.value)
            yield self._edit(at, node, ast.unparse(other), "other operator")

    def _parts(self, node: ast.stmt, scope: tuple[str, ...], outermost: int | None) -> Iterator[Mutant]:
        """The expressions and blocks of a statement that is not a definition."""
        simple = not hasattr(node, "body") and not isinstance(node, ast.Match)
        names = tuple(_names(node)) if outermost is None else ()
        for field, value in ast.iter_fields(node):
            if field in {"annotation", "type_params"} or (field == "exc" and isinstance(value, ast.Call)):
                continue
            if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
                continue
            values = value if isinstance(value, list) else [value]
            if values and isinstance(values[0], ast.stmt):
                yield from self._block(values, scope, outermost)
                continue
            for part in values:
                if isinstance(part, ast.expr) and not isinstance(getattr(part, "ctx", None), ast.Store | ast.Del):
                    yield from self._expression(part, _At(scope, outermost, node if simple else part, names))
                elif isinstance(part, ast.ExceptHandler | ast.match_case):
                    yield from self._block(part.body, scope, outermost)
                    if isinstance(part, ast.match_case) and part.guard is not None:
                        yield from self._expression(part.guard, _At(scope, outermost, part.guard, names))
                elif isinstance(part, ast.withitem):
                    yield from self._expression(part.context_expr, _At(scope, outermost, part.context_expr, names))

    # ------------------------------------------------------------------ expressions

    def _expression(self, node: ast.expr, at: _At, *, key: bool = False) -> Iterator[Mutant]:
        match node:
            case ast.JoinedStr():
                return  # wording, and its parts have no places of their own
            case ast.Lambda():
                yield from self._expression(node.body, at)
                return
            case ast.Constant(value=bool() as value):
                yield self._edit(at, node, str(not value), "the other truth")
            case ast.Constant(value=int() | float() as number):
                yield self._edit(at, node, repr(number + 1 if abs(number) <= 2 else number * 2), "other number")
            case ast.Constant(value=str() as text) if key and text:
                yield self._edit(at, node, repr(f"{text}X"), "other key")
            case ast.Constant(value=bytes() as raw) if key and raw:
                yield self._edit(at, node, repr(raw + b"X"), "other key")
            case ast.Compare():
                for place, op in enumerate(node.ops):
                    for other in COMPARED[type(op)]:
                        ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                        edited = ast.Compare(left=node.left, ops=ops, comparators=node.comparators)
                        yield self._edit(at, node, ast.unparse(edited), "other comparison")
            case ast.BoolOp():
                turned = ast.BoolOp(op=ast.Or() if isinstance(node.op, ast.And) else ast.And(), values=node.values)
                yield self._edit(at, node, ast.unparse(turned), "and for or")
            case ast.UnaryOp(op=ast.Not()):
                yield self._edit(at, node, ast.unparse(node.operand), "not left out")
            case ast.UnaryOp(op=ast.USub()):
                yield self._edit(at, node, ast.unparse(node.operand), "sign left out")
                return
            case ast.BinOp() if type(node.op) in COUNTED and not _is_text(node):
                counted = ast.BinOp(left=node.left, op=COUNTED[type(node.op)](), right=node.right)
                yield self._edit(at, node, ast.unparse(counted), "other operator")
            case ast.IfExp():
                swapped = ast.IfExp(test=node.test, body=node.orelse, orelse=node.body)
                yield self._edit(at, node, ast.unparse(swapped), "the other branch")
            case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
                yield self._edit(at, node.func, SWAPPED[name], "other function")
            case _:
                pass
        yield from self._children(node, at)

    def _children(self, node: ast.expr, at: _At) -> Iterator[Mutant]:
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield from self._expression(node.func, at)
            for place, argument in enumerate(node.args):
                if called in {"isinstance", "issubclass", "cast"} and place == (called != "cast"):
                    continue  # a type
                yield from self._expression(argument, at, key=place == 0 and called in KEYED)
            for keyword in node.keywords:
                yield from self._expression(keyword.value, at)
            return
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from self._expression(side, at, key=True)
            return
        if isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if name is not None:
                    yield from self._expression(name, at, key=True)
                yield from self._expression(value, at)
            return
        if isinstance(node, ast.Subscript):
            yield from self._expression(node.value, at)
            yield from self._expression(node.slice, at, key=True)
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            for generator in node.generators:
                for condition in generator.ifs:
                    if not isinstance(condition, ast.Compare | ast.UnaryOp):
                        yield self._edit(at, condition, f"not ({ast.unparse(condition)})", "condition turned round")
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self._expression(child, at, key=isinstance(node, ast.Set))
            elif isinstance(child, ast.comprehension):
                yield from self._expression(child.iter, at)
                for condition in child.ifs:
                    yield from self._expression(condition, at)

    # ------------------------------------------------------------------ the edit itself

    def _edit(self, at: _At, node: ast.stmt | ast.expr, text: str, kind: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        padding = "\n" * (self.source[start:end].count(b"\n") - text.count("\n"))
        if isinstance(node, ast.expr) and kind != "other function":
            text = f"({text}{padding})"
        else:
            text += padding
        scope, before = ".".join(at.scope), " ".join(ast.unparse(node).split())
        after = " ".join(text.split())
        number = self.seen[scope, before, after]
        self.seen[scope, before, after] += 1
        return Mutant(
            file=self.file,
            scope=scope,
            kind=kind,
            line=node.lineno,
            lines=at.lines,
            start=start,
            end=end,
            text=text,
            before=before,
            after=after,
            number=number,
            outermost=at.outermost,
            names=at.names,
        )


@dataclass(frozen=True, slots=True)
class _At:
    """Where an expression stands."""

    scope: tuple[str, ...]
    outermost: int | None
    node: ast.stmt | ast.expr
    names: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[int, int]:
        return self.node.lineno, self.node.end_lineno or self.node.lineno


def _names(node: ast.stmt) -> Iterator[str]:
    """What a statement at the top of a module or class binds."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id


def _is_log(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _root(node.func) in LOGS


def _is_unreachable(node: ast.Raise) -> bool:
    named = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return isinstance(named, ast.Name) and named.id == "AssertionError"


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        if node.attr in LOGS:
            return node.attr
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_text(node: ast.BinOp) -> bool:
    """Whether texts are put together: taking one from another only raises."""
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
