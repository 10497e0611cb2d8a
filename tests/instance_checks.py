"""jaxtyping's `isinstance` of tensors, with what follows from an annotation worked out once.

It compares dtypes by name and copies its table of sizes at every check. Here a tensor whose dtype has passed before is
compared with the names and sizes of its annotation. Everything else, and every refusal, is jaxtyping's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from jaxtyping import AbstractArray, Float
from jaxtyping._array_types import _anonymous_dim, _anonymous_variadic_dim
from jaxtyping._storage import _shape_storage

TENSORS = (torch.Tensor, torch.nn.Parameter)
NAMED, NAMED_VARIADIC, FIXED = (type(Float[torch.Tensor, text].dims[0]) for text in ("n", "*n", "2"))


@dataclass
class Annotation:
    before: list[str | int | None]  # None where any size will do
    after: list[str | int | None]
    middle: str | None = None  # the name of the sizes between the two; None where any will do
    variadic: bool = False
    dtypes: set[torch.dtype] = field(default_factory=set)  # those that passed

    @staticmethod
    def of(hint: Any) -> Annotation | None:
        """None where an annotation says more than names and sizes."""
        if hint.array_type is not torch.Tensor or hint._skip_instancecheck:
            return None
        at = hint.index_variadic
        rest = [dim for n, dim in enumerate(hint.dims) if n != at]
        if not all(dim is _anonymous_dim or _is_plain(dim, (NAMED, FIXED)) for dim in rest):
            return None
        sizes = [None if dim is _anonymous_dim else dim.size if type(dim) is FIXED else dim.name for dim in rest]
        if at is None:
            return Annotation(sizes, [])
        dim = hint.dims[at]
        if dim is _anonymous_variadic_dim:
            return Annotation(sizes[:at], sizes[at:], None, True)
        return Annotation(sizes[:at], sizes[at:], dim.name, True) if _is_plain(dim, (NAMED_VARIADIC,)) else None

    def takes(self, tensor: torch.Tensor, memo: tuple[Any, ...]) -> bool:
        """Whether sizes agree with those of the call so far, which are extended; as they were where not."""
        single, several = memo[0], memo[1]
        shape, first, last = tensor.shape, len(self.before), len(self.after)
        if len(shape) < first + last if self.variadic else len(shape) != first:
            return False
        new = list[str]()
        if _agree(self.before, shape, single, new) and (
            not self.variadic
            or (
                _agree(self.after, shape[len(shape) - last :], single, new)
                and (
                    self.middle is None
                    or several.setdefault(self.middle, given := (False, shape[first : len(shape) - last])) == given
                )
            )
        ):
            return True
        for name in new:
            del single[name]
        return False


def _is_plain(dim: Any, kinds: tuple[type, ...]) -> bool:
    return type(dim) in kinds and not dim.broadcastable and not getattr(dim, "treepath", False)


def _agree(dims: list[str | int | None], sizes: Any, known: dict[str, int], new: list[str]) -> bool:
    for dim, size in zip(dims, sizes, strict=False):
        if type(dim) is str:
            if dim not in known:
                known[dim] = size
                new.append(dim)
            elif known[dim] != size:
                return False
        elif dim is not None and dim != size:
            return False
    return True


@cache
def make_faster() -> None:
    kind: Any = type(AbstractArray)
    usual: Callable[[Any, Any], bool] = kind.__instancecheck__
    annotations: dict[Any, Annotation | None] = {}

    def check(hint: Any, value: Any) -> bool:
        if type(value) not in TENSORS:
            return usual(hint, value)
        if hint not in annotations:
            annotations[hint] = Annotation.of(hint)
        annotation, stack = annotations[hint], getattr(_shape_storage, "memo_stack", None)
        if annotation and stack and value.dtype in annotation.dtypes and annotation.takes(value, stack[-1]):
            return True
        fits = usual(hint, value)
        if fits and annotation:
            annotation.dtypes.add(value.dtype)
        return fits

    kind.__instancecheck__ = check
