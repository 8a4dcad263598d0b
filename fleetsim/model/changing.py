"""Frozen records of the hot path: making and copying them at less than what the standard library's own ways cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, TypeVar

_R = TypeVar("_R")

if TYPE_CHECKING:
    from dataclasses import replace as replace  # whose arguments the type checker knows
else:

    def replace(record: Any, /, **changes: Any) -> Any:
        """``dataclasses.replace`` at a tenth of its cost, for dataclasses with slots and without ``__post_init__``.

        The standard one reads every field by name and calls ``__init__``, which sets each through
        ``object.__setattr__``: a tenth of what a request cost the hub. Raises AttributeError for what is no field.
        """
        return copier(type(record))[0](record, changes)


def made_often(kind: type[_R]) -> type[_R]:
    """For a frozen dataclass with slots, of which every request makes some: ``__init__`` at half of its cost.

    The standard one sets each field through ``object.__setattr__``. The other one is written when the first record is
    made, so that a command which makes none pays nothing. Raises TypeError for a class that checks itself when it is
    made.
    """

    @wraps(kind.__init__)
    def first(record: Any, /, *args: Any, **members: Any) -> None:
        made = _init_of(kind)
        setattr(kind, "__init__", made)  # noqa: B010 - which the type checker refuses as an assignment
        made(record, *args, **members)

    setattr(kind, "__init__", first)  # noqa: B010
    return kind


@cache
def copier(kind: type) -> tuple[Callable[[Any, dict[str, Any]], Any], dict[str, Callable[[Any, Any], None]]]:
    """A function that copies a record of a class with changes, and the setters of its fields."""
    setters = {field.name: getattr(kind, field.name).__set__ for field in fields(kind)}
    change = "    for name, value in changes.items():\n        setattr(copy, name, value)\n"
    return _written(kind, "changes", {}, change), setters


def changer(kind: type[_R], *names: str) -> Callable[..., _R]:
    """A function that copies a record of a class with other values in these fields, given in this order.

    It costs a third of ``replace``, and is for what is done to each event of a stream. Raises AttributeError for what
    is no field.
    """
    return _written(kind, ", ".join(names), {name: name for name in names})


def _init_of(kind: type) -> Callable[..., None]:
    known: dict[str, Any] = {"_missing": MISSING, "_twin": _twin(kind), "_cast": object.__setattr__}
    placed, named, lines = ["_self"], ["*"], ""
    for field in fields(kind):
        name = value = argument = field.name
        if field.default_factory is not MISSING:
            known[f"_new_{name}"] = field.default_factory
            argument, value = f"{name}=_missing", f"_new_{name}() if {name} is _missing else {name}"
        elif field.default is not MISSING:
            known[f"_default_{name}"] = field.default
            argument = f"{name}=_default_{name}"
        (named if field.kw_only else placed).append(argument)
        lines += f"    _self.{name} = {value}\n"
    arguments = ", ".join(placed + (named if len(named) > 1 else []))
    exec(
        f"def __init__({arguments}):\n"
        "    _kind = _self.__class__\n"
        "    _cast(_self, '__class__', _twin)\n"
        f"{lines}"
        "    _self.__class__ = _kind\n",
        known,
    )
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{kind.__qualname__}.__init__"
    return made


def _twin(kind: type) -> type:
    """A class with the same slots that is not frozen. A record is of it while it is written, since to assign to a slot
    is a fifth of what it costs to call its setter. Raises TypeError for a class that checks itself when it is made.
    """
    if hasattr(kind, "__post_init__"):
        raise TypeError(f"{kind.__name__} checks itself when it is made")
    plainly = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}  # both, or each costs a look-up
    return type(kind)(kind.__name__, kind.__bases__, {"__slots__": kind.__dict__["__slots__"], **plainly})


def _written(kind: type, arguments: str, values: dict[str, str], change: str = "") -> Callable[..., Any]:
    """A function written for the fields of a class, as dataclasses' own are. Raises TypeError as ``_twin``."""
    known: dict[str, Any] = {"new": object.__new__, "kind": kind, "twin": _twin(kind)}
    names = [field.name for field in fields(kind)]
    if strange := values.keys() - names:
        raise AttributeError(f"{kind.__name__} has no {', '.join(strange)}")
    lines = "".join(f"    copy.{name} = {values.get(name, f'record.{name}')}\n" for name in names)
    exec(
        f"def changed(record, {arguments}):\n"
        "    copy = new(twin)\n"
        f"{lines}{change}"
        "    copy.__class__ = kind\n"
        "    return copy\n",
        known,
    )
    changed: Callable[..., Any] = known["changed"]
    return changed
