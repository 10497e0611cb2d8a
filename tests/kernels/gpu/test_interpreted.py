"""Triton's interpreter, as tests/interpreted.py makes it faster."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are compiled here")


@interpreted
def test_equal_types_of_blocks_share_what_follows_from_them():
    first, second = (core.block_type(core.int32, [4, core.constexpr(2)]) for _ in range(2))
    assert vars(first) is vars(second)
    tensor, other = core.tensor("handle", first), core.tensor("another", second)
    assert (tensor.handle, other.handle) == ("handle", "another")
    assert [size.value for size in other.shape] == [4, 2]
    assert (other.numel.value, other.dtype, other.type) == (8, core.int32, second)


@interpreted
def test_types_that_differ_share_nothing():
    pointers = [core.pointer_type(core.int32, **more) for more in ({}, {"const": True}, {"address_space": "shared"})]
    types = [core.block_type(element, [4]) for element in (core.int32, core.uint32, core.float32, *pointers)]
    types += [core.block_type(core.int32, [8]), core.block_type(core.int32, [4, 1])]
    assert len({id(vars(each)) for each in types}) == len(types)
    assert all(left != right for i, left in enumerate(types) for right in types[:i])
    with pytest.raises(ValueError, match="power of 2"):
        core.block_type(core.int32, [3])


def operand(dtype: core.dtype, shape: tuple[int, ...]) -> core.tensor:
    data = np.arange(1, 1 + int(np.prod(shape)), dtype=interpreter._get_np_dtype(dtype)).reshape(shape or (1,))
    return core.tensor(interpreter.TensorHandle(data, dtype), core.block_type(dtype, list(shape)) if shape else dtype)


def described(tensors: Iterable[core.tensor]) -> list[object]:
    return [
        (t.type, t.handle.dtype, t.handle.data.dtype, t.handle.data.shape, t.handle.data.tobytes()) for t in tensors
    ]


@interpreted
@pytest.mark.parametrize("dtype", [core.int32, core.int64, core.uint32, core.float32, core.float64, core.float16])
def test_operands_are_those_of_the_interpreter(dtype):
    """Twice each: the second time what is known is used."""
    semantic, fast = interpreter.interpreter_semantic, TritonSemantic.binary_op_type_checking_impl
    shapes = [(), (4,), (4, 1), (1, 8), (4, 8), (1, 4, 1)]
    others = [operand(kind, shape) for kind in (dtype, core.int32, core.float32) for shape in shapes]
    for shape in shapes:
        mine = operand(dtype, shape)
        for other in [*others, 0, 0.0, -0.0, 1, 1.0, True, 3, 2.5, -1, float("inf"), 1 << 40] * 2:
            said = []
            for check in (fast, fast.__wrapped__):
                try:
                    said.append(described(check(semantic, mine, other)))
                except (TypeError, ValueError, RuntimeWarning) as error:
                    said.append(str(error))
            assert said[0] == said[1], (shape, other)


@interpreted
def test_a_scalar_and_a_block_of_one_row_are_repeated_as_the_interpreter_does():
    builder = interpreter.interpreter_builder
    for shape in [(1,), (8,), (2, 4)]:
        given = builder, core.block_type(core.int32, list(shape)), operand(core.int32, ()).handle
        assert (type(builder).create_splat(*given).data == type(builder).create_splat.__wrapped__(*given).data).all()
    for start, shape in [((4, 1), [4, 8]), ((1, 8), [4, 8]), ((1, 1), [2, 2]), ((4, 1), [4, 8192])]:
        given = builder, operand(core.float32, start).handle, shape
        fast, usual = (f(*given) for f in (type(builder).create_broadcast, type(builder).create_broadcast.__wrapped__))
        assert described([core.tensor(fast, core.float32)]) == described([core.tensor(usual, core.float32)])
