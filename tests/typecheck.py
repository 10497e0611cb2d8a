"""Types and shapes in signatures, checked while tests run.

jaxtyping has an import hook for this, with which the suite takes twice as long. It binds the arguments of every call
of every function, and checks them twice. Here beartype checks them once, and only functions that name shapes get a
table of sizes for the call.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import update_wrapper, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from inspect import isclass
from types import CellType, CodeType, FunctionType
from typing import Any, get_args

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray
from jaxtyping._storage import pop_shape_memo, push_shape_memo

CHECK_THEMSELVES = {"Sampling.__init__"}  # it takes more types than it holds

# an int is welcome where a float is asked for; what is refused is a TypeError, as jaxtyping's is
_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError))
_kept: dict[CodeType, tuple[FunctionType, Any, bool]] = {}


def install(packages: Sequence[str]) -> None:
    """Check what is defined in these packages; before they are imported."""
    sys.meta_path.insert(0, Finder(tuple(packages)))


def check(subject: Any) -> Any:
    """A function that checks its arguments and its result; a dataclass that checks its fields."""
    if not isclass(subject):
        return checked(subject)
    init = vars(subject).get("__init__")
    if is_dataclass(subject) and init and not hasattr(init, "__wrapped__"):
        subject.__init__ = checked(init)  # type: ignore[misc]
    return subject


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    inner, has_shapes = bound(function) if "<locals>" in function.__qualname__ else decorated(function)
    if not has_shapes:
        return inner
    import instance_checks  # imports torch, which the process that hands out tests does without

    instance_checks.make_faster()

    @wraps(function)
    def with_sizes(*args: Any, **kwargs: Any) -> Any:
        push_shape_memo({})  # sizes are compared within one call only: `jaxtyped("context")`, which takes longer
        try:
            return inner(*args, **kwargs)
        finally:
            pop_shape_memo()

    return with_sizes


def decorated(function: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The function with checks, and whether its signature names shapes."""
    texts = function.__annotations__
    hints = {name: resolved(text, function.__globals__) for name, text in texts.items()}
    if function.__qualname__ in CHECK_THEMSELVES or all(hint is Any for hint in hints.values()):
        return function, False
    function.__annotations__ = hints
    inner = _beartype(function)
    function.__annotations__ = inner.__annotations__ = texts
    return inner, any(map(names_shapes, hints.values()))


def bound(function: FunctionType) -> tuple[Callable[..., Any], bool]:
    """As `decorated`, for a function inside another one. It is defined again in every call of the other, and beartype
    takes longer than most such calls, so that the code of its checks is kept, without the variables of any call."""
    code = function.__code__
    if code not in _kept:
        cells = tuple(CellType() for _ in code.co_freevars)
        hollow = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells)
        hollow.__qualname__, hollow.__module__ = function.__qualname__, function.__module__
        hollow.__annotations__, hollow.__kwdefaults__ = function.__annotations__, function.__kwdefaults__
        _kept[code] = hollow, *decorated(hollow)
    hollow, inner, has_shapes = _kept[code]
    if inner is hollow:
        return function, False
    copy = FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__)
    copy.__kwdefaults__ = {name: function if value is hollow else value for name, value in inner.__kwdefaults__.items()}
    assert function in copy.__kwdefaults__.values(), "beartype no longer keeps the function among the defaults"
    return update_wrapper(copy, function), has_shapes


def resolved(text: Any, names: dict[str, Any]) -> Any:
    """The type that an annotation says; Any where its names are known to type checkers alone, or not yet defined."""
    try:
        return eval(text, names) if isinstance(text, str) else text
    except NameError:
        return Any


def names_shapes(hint: Any) -> bool:
    return (isclass(hint) and issubclass(hint, AbstractArray)) or any(map(names_shapes, get_args(hint)))


class Decorate(ast.NodeTransformer):
    """`check` on every class, above other decorators, and on every function, below them."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list.insert(0, decorator())
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list.append(decorator())
        return self.generic_visit(node)


def decorator() -> ast.expr:
    """`__import__("typecheck").check`, which no name in the module hides."""
    name, load = ast.Name("__import__", ast.Load()), ast.Load()
    return ast.Attribute(ast.Call(name, [ast.Constant(__name__)], []), check.__name__, load)


class Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        """Compiled from the source each time: the cache of modules holds the code without checks."""
        path = self.get_filename(fullname)
        tree = Decorate().visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if not any(name == package or name.startswith(package + ".") for package in self._packages):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec
