"""The quick form of jaxtyping's `isinstance` says what jaxtyping says, and leaves the same sizes behind."""

from __future__ import annotations

from itertools import product

import pytest

pytest.importorskip("beartype")
pytest.importorskip("jaxtyping")

import torch
from jaxtyping import Bool, Float, Int, jaxtyped
from jaxtyping._storage import get_shape_memo
from torch import Tensor

import instance_checks

SHAPES = [(), (2,), (3,), (2, 2), (2, 3), (3, 2), (2, 3, 4), (1, 2, 3)]
TEXTS = ["", "n", "n n", "n m", "2 m", "*n", "*n m", "n *k m", "...", "n ...", "_ m", "#n m", "n n+1", "n 3 *k"]


@pytest.mark.parametrize("kind", [Float, Int, Bool])
@pytest.mark.parametrize("text", TEXTS)
def test_it_says_what_jaxtyping_says_and_learns_what_it_learns(kind, text):
    instance_checks.make_faster()
    hint = kind[Tensor, text]
    for shape in SHAPES:  # every dtype that can pass has passed
        for dtype in (torch.float32, torch.long, torch.bool):
            with jaxtyped("context"):
                say(hint, torch.zeros(shape, dtype=dtype))
    for first, second, dtype in product(SHAPES, SHAPES, (torch.float32, torch.long)):
        tensors = torch.zeros(first), torch.zeros(second, dtype=dtype)
        with jaxtyped("context"):
            quick = [(say(Float[Tensor, "n m"], tensors[0])), say(hint, tensors[1]), *memo()]
        with jaxtyped("context"):
            slow = [plainly(Float[Tensor, "n m"], tensors[0]), plainly(hint, tensors[1]), *memo()]
        assert quick == slow, (first, second, dtype)


def say(hint, value) -> bool | str:
    try:
        return isinstance(value, hint)
    except Exception as error:
        return type(error).__name__


def plainly(hint, value) -> bool | str:
    try:
        return hint.__instancecheck_str__(value) == ""
    except Exception as error:
        return type(error).__name__


def memo() -> list[dict]:
    return [dict(table) for table in get_shape_memo()[:2]]
