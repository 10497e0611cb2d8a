"""Operations of Triton's interpreter with less to do before NumPy computes. Results are the same to the bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

LARGE = 1 << 14  # elements from which a view is cheaper than a copy


def make_faster() -> None:
    """What is known from the types of two operands is looked up, and so are constants."""
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    core = interpreter.tl.core
    interpreter._patch_attr = _called_directly(core, interpreter)
    core._unwrap_if_constexpr = _unless_plain(core._unwrap_if_constexpr, core)
    interpreter.TensorHandle.__init__ = _checked_by_width(interpreter.TensorHandle.__init__)
    TritonSemantic.binary_op_type_checking_impl = _known_operands(TritonSemantic.binary_op_type_checking_impl, core)
    builder = interpreter.InterpreterBuilder
    builder.create_splat = _repeated(builder.create_splat, interpreter)
    builder.create_broadcast = _repeated_along_axes(builder.create_broadcast, interpreter)


def _called_directly(core: Any, interpreter: Any) -> Callable[..., None]:
    """Each function of the language is wrapped to ask whether it was given its semantics. Here it always is."""
    wrapper = core.builtin(lambda: None).__code__

    def patch(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        function = member.__wrapped__ if getattr(member, "__code__", None) is wrapper else member

        def called(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = interpreter.interpreter_semantic
            return function(*args, **kwargs)

        scope.set_attr(obj, name, called)

    return patch


def _unless_plain(unwrap: Callable[[Any], Any], core: Any) -> Callable[[Any], Any]:
    plain = {core.tensor, int, float, bool, type(None), str}

    @wraps(unwrap)
    def fast(o: Any) -> Any:
        return o if type(o) in plain else unwrap(o)

    return fast


def _checked_by_width(init: Callable[..., None]) -> Callable[..., None]:
    """The check of a handle's width depends on two types only."""
    passed = set[tuple[str, int]]()

    @wraps(init)
    def shared(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        key = dtype.name, data.itemsize
        if key in passed:
            self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        else:
            init(self, data, dtype, {} if attr is None else attr)
            passed.add(key)

    return shared


def _number_of(type: Any, numbers: dict[Any, int]) -> int:
    """Equal for equal types; kept with the type, whose attributes blocks of one type share."""
    number = vars(type).get("_number")
    if number is None:
        sizes = tuple(type.shape) if type.is_block() else None
        scalar = type.scalar
        key = scalar.name, getattr(scalar, "address_space", None), sizes
        number = type._number = numbers.setdefault(key, len(numbers))
    return number


def _known_operands(check: Callable[..., Any], core: Any) -> Callable[..., Any]:
    """Two operands of one type that stay as they are, and a block with a constant, which is made once."""
    numbers: dict[Any, int] = {}
    same = set[tuple[Any, ...]]()
    constants: dict[tuple[Any, ...], Any] = {}
    tensor = core.tensor

    @wraps(check)
    def fast(self: Any, lhs: Any, rhs: Any, *how: Any, **more: Any) -> Any:
        if type(lhs) is not tensor or more:
            return check(self, lhs, rhs, *how, **more)
        number = _number_of(lhs.type, numbers)
        if type(rhs) is tensor:
            if number != _number_of(rhs.type, numbers):
                return check(self, lhs, rhs, *how)
            if (number, how) in same:
                return lhs, rhs
            left, right = check(self, lhs, rhs, *how)
            if left is lhs and right is rhs:
                same.add((number, how))
            return left, right
        key = number, type(rhs), rhs, how
        if key in constants:
            return lhs, constants[key]
        left, right = check(self, lhs, rhs, *how)
        if left is lhs and rhs != 0.0 and rhs == rhs:  # 0.0 and -0.0 have one key, and nan is not found
            right.handle.data.flags.writeable = False
            constants[key] = right
        return left, right

    return fast


def _repeated(splat: Callable[..., Any], interpreter: Any) -> Callable[..., Any]:
    @wraps(splat)
    def fast(self: Any, ret_ty: Any, arg: Any) -> Any:
        data, shape = arg.data, ret_ty.shape
        if len(shape) != 1 or data.shape != (1,) or data.dtype is not interpreter._get_np_dtype(arg.dtype):
            return splat(self, ret_ty, arg)
        return interpreter.TensorHandle(data.repeat(shape[0]), arg.dtype.scalar)

    return fast


def _repeated_along_axes(broadcast: Callable[..., Any], interpreter: Any) -> Callable[..., Any]:
    @wraps(broadcast)
    def fast(self: Any, arg: Any, shape: Any) -> Any:
        data = arg.data
        sizes = [size if type(size) is int else size.value for size in shape]
        axes = [axis for axis, size in enumerate(sizes) if data.shape[axis] != size]
        if len(axes) != 1 or data.size * sizes[axes[0]] > LARGE:
            return broadcast(self, arg, shape)
        return interpreter.TensorHandle(data.repeat(sizes[axes[0]], axes[0]), arg.dtype.scalar)

    return fast
