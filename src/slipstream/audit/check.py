"""One check of an audit: its name, the layer of proof it belongs to, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Check:
    """The result of a check."""

    name: str
    layer: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Planned(Generic[Result]):
    """A check that has not run yet. An audit plans all of its checks first, so that it can say how many there are."""

    name: str
    run: Callable[[], Result]
    cost: float  # expected time, in a unit that the caller measures


def planned(name: str, check: Callable[..., Check], *arguments: object, cost: float, **more: object) -> Planned[Check]:
    """Plan `check(name, *arguments, **more)`."""
    return Planned(name, partial(check, name, *arguments, **more), cost)


LAYERS = {
    "rational": "the rule's output law, enumerated in exact fractions: equality, no tolerance",
    "exact": "the shipped loop with every outcome of every draw, within 1e-12; no draw is used twice",
    "rows": "given rows of p and q: accepted + residual = p in float64",
    "sampled": "the shipped loop with its own random numbers: exact binomial tails, false alarm below 1e-6 per run",
    "replay": "token for token against plain decoding: greedy, and coupled with one seed",
}
