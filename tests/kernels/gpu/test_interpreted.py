"""Triton's interpreter, as tests/interpreted.py makes it faster."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from triton.language import core

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
