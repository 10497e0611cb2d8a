"""Triton's interpreter, with less to do for each launch and each operation, and products that no processor rounds
differently. Otherwise results are the same to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

import interpreted_operations


def make_faster() -> None:
    """Most of the interpreter's time goes into types and shapes of blocks, which are the same in every launch."""
    patch_once()
    skip_overflow_check()
    share_types()
    interpreted_operations.make_faster()


def sum_rows_alike() -> None:
    """Compute products of float32 in float64. Libraries sum a row in another order when there are more rows beside it,
    on some processors, and a GPU does not."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    dot = builder.create_dot

    def exact(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        if a.data.dtype != np.float32 or d.data.dtype != np.float32:
            return dot(self, a, b, d, *how)
        product = np.matmul(a.data, b.data, dtype=np.float64).astype(np.float32)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    builder.create_dot = exact


def patch_once() -> None:
    """Exchange the functions of Triton's language for interpreted ones at the first launch and leave them. The
    interpreter exchanges them and puts them back at every launch, which takes a quarter of the time here."""
    from triton.runtime import interpreter

    patch: Callable[[Any], Any] = interpreter._patch_lang
    modules = (interpreter.tl, interpreter.tl.core)
    scopes: dict[frozenset[str], Any] = {}
    known = set[str]()  # modules whose functions were exchanged

    def patched(function: Any) -> Any:
        if function.__module__ not in known:
            values = function.__globals__.values()
            names = frozenset(value.__name__ for value in values if any(value is module for module in modules))
            if names not in scopes:
                scopes[names] = patch(function)
            known.add(function.__module__)
        return interpreter._LangPatchScope()  # nothing is put back

    interpreter._patch_lang = patched


def skip_overflow_check() -> None:
    """Every sum and product of integers is computed a second time in 64 bits and compared, for an assertion that the
    interpreter evaluates only in its debug mode. Kernels keep their own `device_assert`s."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "in debug mode the check can fail"
    builder.options = replace(builder.options, sanitize_overflow=False)


def share_types() -> None:
    """Compute what follows from a type once, and share it: equal types of blocks, the attributes of their tensors and
    their NumPy types. Two blocks of one shape are not broadcast."""
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    core = interpreter.tl.core
    core.block_type.__init__ = _shared_block_types(core.block_type.__init__, core)
    core.tensor.__init__ = _shared_attributes(core.tensor.__init__)
    core.dtype.__eq__ = _identical_first(core.dtype.__eq__)
    interpreter._get_np_dtype = _by_name(interpreter._get_np_dtype)
    TritonSemantic.broadcast_impl_value = _unless_equal_shapes(TritonSemantic.broadcast_impl_value)


def _shared_block_types(init: Callable[..., None], core: Any) -> Callable[..., None]:
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    @wraps(init)
    def shared(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(size.value if isinstance(size, core.constexpr) else size for size in shape)
        key = (element_ty.name, getattr(element_ty, "address_space", None), sizes)
        if key not in known:
            init(self, element_ty, shape)
            known[key] = vars(self)
        self.__dict__ = known[key]

    return shared


def _shared_attributes(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def shared(self: Any, handle: Any, type: Any) -> None:
        attributes = vars(type).get("_attributes_of_tensors")
        if attributes is None:
            init(self, handle, type)
            type._attributes_of_tensors = {name: value for name, value in vars(self).items() if name != "handle"}
            return
        self.__dict__.update(attributes)
        self.handle = handle

    return shared


def _identical_first(equal: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(equal)
    def compare(self: Any, other: Any) -> bool:
        return self is other or equal(self, other)

    return compare


def _by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[str, Any] = {}

    @wraps(function)
    def looked_up(tt_dtype: Any) -> Any:
        if tt_dtype.name not in known:
            known[tt_dtype.name] = function(tt_dtype)
        return known[tt_dtype.name]

    return looked_up


def _unless_equal_shapes(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(broadcast)
    def fast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if left.is_block() and right.is_block() and list(left.shape) == list(right.shape):
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    return fast
