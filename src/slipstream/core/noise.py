"""Random draws as a function of who asks, where and what for: no state, no order, no batch mate.

A draw is the hash of a key. Ordinarily the key is (seed, sample index, committed length at the start of the cycle,
node, stage, purpose): every draw of every cycle is fresh, also a draw for a position that an earlier cycle drew for
and discarded. Keyed by position alone it would be biased: block verification conditions on draws beyond the accepted
prefix, and a policy may have seen the discarded ones.

Under the coupled rule the key is (seed, sample index, position) on purpose: draft, target and plain decoding run the
same race at a position, and the same seed gives the same tokens whoever drafts, and however far.

A token is drawn by the exponential race argmin E_x / law(x), one exponential per token id, over the support only; a
token of probability zero cannot win. 52 random bits per number; the integers are the same on every device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import torch

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.core.law import Law, Sparse
from slipstream.core.types import Row


class Purpose(IntEnum):
    """What a draw decides; two purposes never share a number."""

    DRAFT = 1
    ACCEPT = 2
    EMIT = 3
    FIELD = 4


@dataclass(frozen=True, eq=False)
class Site:
    """Where a draw happens: the row in this cycle, the node within the row, and the drafted tokens before it."""

    row: Int[Tensor, " n"]
    node: Int[Tensor, " n"]
    depth: Int[Tensor, " n"]


Chances = Callable[[Sequence[int]], list[float]]


class Noise(ABC):
    """The draws of one cycle. A rule or drafter says what to decide and where; how is not its business."""

    @abstractmethod
    def flip(self, prob: Float[Tensor, " n"], site: Site) -> Bool[Tensor, " n"]:
        """True with the given probability, at each site."""

    def weigh(self, most: Sequence[float], exact: Chances, site: Site) -> list[bool]:
        """`flip` with probabilities that are dear to know: none is more than `most` says, and `exact` gives those of
        some of the sites."""
        return self.flip(torch.tensor(exact(range(len(most))), dtype=torch.float64), site).tolist()

    @abstractmethod
    def draw(self, law: Law, site: Site, purpose: Purpose, stage: int = 0) -> Int[Tensor, " n"]:
        """A token from each law, at each site."""

    @property
    def fields(self) -> bool:
        """Whether every position has noise that draft and target share, so that `odds` knows more than the law."""
        return False

    def ahead(self, row: int, count: int) -> list[int]:
        """The keys by which a chain is drafted over the next `count` positions of a row, which are those of the noise
        that is shared there where it is; none where draws are no matter of keys."""
        return []

    def odds(self, law: Law, site: Site) -> Law:
        """How likely each token is to win the target's race, given the noise of its position and that the target's law
        is near this one: the first finishers of the draft's own race, the better the clearer they won. Without such
        noise that is the law."""
        return law


class CounterNoise(Noise):
    """Noise by hashing counters; rows marked `shared` draw tokens from the field of their position.

    Keys are a few numbers and are made on the host; the race over a vocabulary runs where the law is."""

    def __init__(self, rows: Sequence[Row], shared: Sequence[bool]) -> None:
        self._rows, self._shared = rows, shared
        self._start = [row.length for row in rows]  # rows grow; this noise belongs to their length now

    @cached_property
    def _stream(self) -> list[int]:
        """A key for every sample of every request; not made where nothing is ever drawn."""
        return keys([row.seed for row in self._rows], [row.sample for row in self._rows]).tolist()

    @property
    def fields(self) -> bool:
        return len(self._shared) > 0 and all(self._shared)

    def ahead(self, row: int, count: int) -> list[int]:
        return keys(*zip(*(self._key(row, n, n, Purpose.DRAFT) for n in range(count)), strict=True)).tolist()

    def _key(self, row: int, node: int, depth: int, purpose: int) -> tuple[int, int, int, int]:
        """What the draw of a token is keyed by."""
        stream, start = self._stream[row], self._start[row]
        return (stream, start + depth, 0, Purpose.FIELD) if self._shared[row] else (stream, start, node, purpose)

    def odds(self, law: Law, site: Site) -> Law:
        ids, probs = law.support()
        if ids.shape[1] == 1:
            return law
        where = zip(site.row.tolist(), site.depth.tolist(), strict=True)
        key = keys(*zip(*((self._stream[r], self._start[r] + d, 0, Purpose.FIELD) for r, d in where), strict=True))
        lead = probs.double().log() - torch.log(-torch.log(uniform(fold(key.to(ids.device)[:, None], ids))))
        dead = (probs <= 0).all(-1, keepdim=True)
        return Sparse(ids, lead.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0).to(probs.dtype), law.vocab)

    def flip(self, prob: Float[Tensor, " n"], site: Site) -> Bool[Tensor, " n"]:
        coin = torch.tensor(self._coins(site), dtype=torch.float64)
        return coin.to(prob.device) < prob

    def weigh(self, most: Sequence[float], exact: Chances, site: Site) -> list[bool]:
        coin = self._coins(site)
        asked = [i for i, (u, bound) in enumerate(zip(coin, most, strict=True)) if u < bound]
        won = {i for i, p in zip(asked, exact(asked) if asked else (), strict=True) if coin[i] < p}
        return [i in won for i in range(len(coin))]

    def _coins(self, site: Site) -> list[float]:
        """The numbers that acceptances are decided by: `uniform` of their keys."""
        row, node = site.row.tolist(), site.node.tolist()
        fields = [self._stream[r] for r in row], [self._start[r] for r in row], node, [Purpose.ACCEPT] * len(row)
        if len(row) > FEW:
            return uniform(keys(*fields)).tolist()
        return [((key >> 12) + 0.5) * 2.0**-52 for key in _folded(*fields)]

    def draw(self, law: Law, site: Site, purpose: Purpose, stage: int = 0) -> Int[Tensor, " n"]:
        if law.width == 1:  # a token that was chosen: no race, and no key for one
            return law.support()[0][:, 0]
        where = zip(site.row.tolist(), site.node.tolist(), site.depth.tolist(), strict=True)
        key = [self._key(*place, purpose + 16 * stage) for place in where]
        token = self.race(law, keys(*zip(*key, strict=True)))
        if len(token) and int(token.min()) < 0:
            raise FloatingPointError("a law holds NaN or no possible token, so nothing can be drawn from it")
        return token

    def race(self, law: Law, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        return race(law, key)


def race(law: Law, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """argmin over the support of E_x / law(x): token x wins with probability law(x). -1 where the law holds NaN or no
    possible token. Runs where the law is."""
    ids, probs = law.support()
    key = key.to(ids.device)
    if ids.shape[1] == 1:
        return ids[:, 0]
    finish = -torch.log(uniform(fold(key[:, None], ids))) / probs.double()
    first = finish.argmin(1, keepdim=True)  # a NaN counts as least
    return torch.where(finish.gather(1, first).isfinite(), ids.gather(1, first), -1)[:, 0]


def uniform(key: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A number strictly between 0 and 1 for each key, from its upper 52 bits."""
    return (_shift(key, 12).double() + 0.5) * 2.0**-52


def fold(key: Int[Tensor, "..."], *fields: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Absorb each field into the key. The mixer is the SplitMix64 finaliser; int64 wraps alike on every device."""
    for field in fields:
        key = _mix(_mix(key) + (field + 1) * _GOLDEN)
    return key


def keys(*fields: Sequence[int]) -> Int[Tensor, " n"]:
    """`fold` of numbers on the host. For a few of them whole numbers are faster than tensors, and wrap by hand."""
    if len(fields[0]) > FEW:
        return fold(*(torch.tensor(field, dtype=torch.long) for field in fields))
    return torch.tensor([key - (key >> 63 << 64) for key in _folded(*fields)], dtype=torch.long)


def _folded(*fields: Sequence[int]) -> list[int]:
    """The same as whole numbers, from 0 on."""
    values = []
    for key, *rest in zip(*fields, strict=True):
        for field in rest:
            key = _mixed(_mixed(key & _MASK) + (field + 1) * _GOLDEN & _MASK)
        values.append(key)
    return values


def _mixed(x: int) -> int:
    x = (x ^ x >> 30) * _FIRST & _MASK
    x = (x ^ x >> 27) * _SECOND & _MASK
    return x ^ x >> 31


FEW = 64
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: int64 shifts copy the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
