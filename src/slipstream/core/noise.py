"""Counter-based random draws: each draw is a hash of a key, without state, order or dependence on other rows.

Ordinarily the key is (seed, sample index, committed length at the start of the cycle, node, purpose). So every cycle
has fresh draws, also for a position for which an earlier cycle discarded its draws. A key of the position alone would
bias the output: block verification conditions on draws beyond the accepted prefix, and a policy may have seen the
discarded draws.

A staged draft is made in cycles of its own. The key of an inner cycle holds the committed length of the outer cycle,
the stage, the number of the continuation and the start of the inner cycle. Without the outer length, two outer cycles
would share draws. Without the inner start, two inner cycles of one draft would.

Under the coupled rule the key is (seed, sample index, position). Draft, target and plain decoding then run the same
race at a position, so one seed gives the same tokens for every drafter and every depth. The noise of all tokens at one
position is called its field.

A token is sampled by the exponential race argmin E_x / law(x), with one exponential E_x per token id of the support. A
token of probability zero cannot win. Each number has 52 random bits. The integers are the same on every device.
"""

from __future__ import annotations

import copy
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
    """What a draw decides. It is part of the key, so two purposes never share a random number."""

    DRAFT = 1  # a drafted token
    ACCEPT = 2  # whether a drafted token is accepted
    EMIT = 3  # the token after the accepted ones
    FIELD = 4  # a token drawn from the noise of its position (coupled rule)
    STAGE = 5  # no draw: the part of a key under which an inner cycle has its own draws


@dataclass(frozen=True, eq=False)
class Site:
    """Where draws happen: the row's index in this cycle, the node's index within the row, the drafted tokens before."""

    row: Int[Tensor, " n"]
    node: Int[Tensor, " n"]
    depth: Int[Tensor, " n"]


@dataclass(frozen=True)
class InnerCycle:
    """A cycle in which a stage of a draft verifies the tokens of the stage before it (`drafters/staged`)."""

    rows: Sequence[int]  # indices of its rows in the outer cycle
    drafted: Sequence[int]  # drafted tokens of each row before it, from the committed end on
    stage: int
    branch: int = 0  # number of the continuation, if rows draft several


Probabilities = Callable[[Sequence[int]], list[float]]
"""Computes the probabilities at the given indices."""


class Noise(ABC):
    """The random draws of one cycle."""

    @abstractmethod
    def flip(self, prob: Float[Tensor, " n"], site: Site) -> Bool[Tensor, " n"]:
        """True with the given probability, at each site."""

    def flip_bounded(self, bounds: Sequence[float], exact: Probabilities, site: Site) -> list[bool]:
        """`flip` with probabilities that are expensive to compute.

        `bounds`: an upper bound of each. `exact` computes the probabilities at the given indices of the sites."""
        return self.flip(torch.tensor(exact(range(len(bounds))), dtype=torch.float64), site).tolist()

    @abstractmethod
    def draw(self, law: Law, site: Site, purpose: Purpose) -> Int[Tensor, " n"]:
        """A token from each law, at each site."""

    def inner(self, cycle: InnerCycle) -> Noise:
        """The draws of an inner cycle of this cycle's draft. Its rows are those of `cycle.rows`, in that order.

        The first continuation of a row that draws from fields draws from the fields of its own positions."""
        raise TypeError(f"{type(self).__name__} has no draws for the stages of a draft")

    def later(self, rows: Sequence[int], tokens: Sequence[int]) -> Noise:
        """The draws of some rows in a cycle that begins `tokens` tokens after the start of this one; 0: in this cycle.

        `rows` are indices of this cycle's rows. They are a draft's draws before it is known that the cycle begins
        there (`drafters/overlapped`)."""
        raise TypeError(f"{type(self).__name__} has no draws of later cycles")

    @property
    def has_fields(self) -> bool:
        """Whether draft and target share the noise of every position, so that `odds` differs from the law."""
        return False

    def chain_keys(self, row: int, count: int) -> list[int]:
        """The keys for drafting a chain over the next `count` positions of a row; empty if draws do not use keys."""
        return []

    def stream(self, row: int) -> int | None:
        """The key from which those of all draws of a row are folded, in any cycle; None if draws do not use keys."""
        return None

    def odds(self, law: Law, site: Site) -> Law:
        """An estimate of each token's probability to win the target's race, given the noise of its position.

        It assumes that the target's law is close to `law`. Tokens that finish early in the draft's own race get high
        odds. Without shared noise the odds are the law itself."""
        return law


class ArgmaxNoise(Noise):
    """No noise: the most probable token, the lowest id among equal ones, and the more probable side of a flip."""

    def flip(self, prob: Float[Tensor, " n"], site: Site) -> Bool[Tensor, " n"]:
        return prob >= 0.5

    def draw(self, law: Law, site: Site, purpose: Purpose) -> Int[Tensor, " n"]:
        ids, probs = law.support()
        best = probs == probs.amax(-1, keepdim=True)
        return torch.where(best, ids, law.vocab).amin(-1)

    def inner(self, cycle: InnerCycle) -> Noise:
        return self

    def later(self, rows: Sequence[int], tokens: Sequence[int]) -> Noise:
        return self


class CounterNoise(Noise):
    """Noise by hashing counters. Rows marked `shared` draw tokens from the field of their position.

    Keys are made on the host. The race over the vocabulary runs on the device of the law."""

    def __init__(self, rows: Sequence[Row], shared: Sequence[bool]) -> None:
        self._rows, self._shared = rows, shared
        self._start = [row.length for row in rows]  # stored, because rows grow when the cycle is committed

    @cached_property
    def _stream(self) -> list[int]:
        """A key for each row. Computed on first use, because greedy cycles draw nothing."""
        return keys([row.seed for row in self._rows], [row.sample for row in self._rows]).tolist()

    def inner(self, cycle: InnerCycle) -> CounterNoise:
        noise = copy.copy(self)
        noise._rows = [self._rows[r] for r in cycle.rows]
        noise._shared = [self._shared[r] and not cycle.branch for r in cycle.rows]
        noise._start = list(cycle.drafted)
        stream = []
        for n, (r, shared) in enumerate(zip(cycle.rows, noise._shared, strict=True)):
            if shared:
                noise._start[n] += self._start[r]
                stream.append(self._stream[r])
            else:
                key = [self._stream[r]], [self._start[r]], [cycle.stage], [cycle.branch], [int(Purpose.STAGE)]
                stream += keys(*key).tolist()
        noise.__dict__["_stream"] = stream
        return noise

    def later(self, rows: Sequence[int], tokens: Sequence[int]) -> CounterNoise:
        noise = copy.copy(self)
        noise._rows = [self._rows[r] for r in rows]
        noise._shared = [self._shared[r] for r in rows]
        noise._start = [self._start[r] + count for r, count in zip(rows, tokens, strict=True)]
        noise.__dict__.pop("_stream", None)
        return noise

    @property
    def has_fields(self) -> bool:
        return len(self._shared) > 0 and all(self._shared)

    def chain_keys(self, row: int, count: int) -> list[int]:
        return keys(*zip(*(self._key(row, n, n, Purpose.DRAFT) for n in range(count)), strict=True)).tolist()

    def stream(self, row: int) -> int | None:
        return self._stream[row]

    def _key(self, row: int, node: int, depth: int, purpose: int) -> tuple[int, int, int, int]:
        """The key fields of a token's draw."""
        stream, start = self._stream[row], self._start[row]
        return (stream, start + depth, 0, Purpose.FIELD) if self._shared[row] else (stream, start, node, purpose)

    def odds(self, law: Law, site: Site) -> Law:
        ids, probs = law.support()
        if ids.shape[1] == 1:
            return law
        where = zip(site.row.tolist(), site.depth.tolist(), strict=True)
        key = keys(*zip(*((self._stream[r], self._start[r] + d, 0, Purpose.FIELD) for r, d in where), strict=True))
        gumbel = -torch.log(-torch.log(uniform(fold(key.to(ids.device)[:, None], ids))))
        score, empty = probs.double().log() + gumbel, (probs <= 0).all(-1, keepdim=True)
        odds = score.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
        return Sparse(ids, odds.to(probs.dtype), law.vocab)

    def flip(self, prob: Float[Tensor, " n"], site: Site) -> Bool[Tensor, " n"]:
        draws = torch.tensor(self._acceptance_draws(site), dtype=torch.float64)
        return draws.to(prob.device) < prob

    def flip_bounded(self, bounds: Sequence[float], exact: Probabilities, site: Site) -> list[bool]:
        draws = self._acceptance_draws(site)
        undecided = [i for i, (draw, bound) in enumerate(zip(draws, bounds, strict=True)) if draw < bound]
        probs = exact(undecided) if undecided else ()
        accepted = {i for i, prob in zip(undecided, probs, strict=True) if draws[i] < prob}
        return [i in accepted for i in range(len(draws))]

    def _acceptance_draws(self, site: Site) -> list[float]:
        """Uniform numbers in (0, 1) that decide acceptances."""
        row, node = site.row.tolist(), site.node.tolist()
        fields = [self._stream[r] for r in row], [self._start[r] for r in row], node, [Purpose.ACCEPT] * len(row)
        if len(row) > FEW:
            return uniform(keys(*fields)).tolist()
        return [((key >> 12) + 0.5) * 2.0**-52 for key in _folded(*fields)]

    def draw(self, law: Law, site: Site, purpose: Purpose) -> Int[Tensor, " n"]:
        if law.width == 1:  # one possible token: no draw
            return law.support()[0][:, 0]
        where = zip(site.row.tolist(), site.node.tolist(), site.depth.tolist(), strict=True)
        key = [self._key(*place, purpose) for place in where]
        token = self.race(law, keys(*zip(*key, strict=True)))
        if len(token) and int(token.min()) < 0:
            raise FloatingPointError("a law holds NaN or no possible token, so nothing can be drawn from it")
        return token

    def race(self, law: Law, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        return race(law, key)


def race(law: Law, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """argmin over the support of E_x / law(x): token x wins with probability law(x).

    -1 if the law holds NaN or no possible token. Runs on the device of the law."""
    ids, probs = law.support()
    key = key.to(ids.device)
    if ids.shape[1] == 1:
        return ids[:, 0]
    finish = -torch.log(uniform(fold(key[:, None], ids))) / probs.double()
    first = finish.argmin(1, keepdim=True)  # argmin treats NaN as the minimum
    return torch.where(finish.gather(1, first).isfinite(), ids.gather(1, first), -1)[:, 0]


def uniform(key: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A number strictly between 0 and 1 for each key, from its upper 52 bits."""
    return (_shift(key, 12).double() + 0.5) * 2.0**-52


def fold(key: Int[Tensor, "..."], *fields: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Hash each field into the key with the SplitMix64 finaliser. int64 wraps in the same way on all devices."""
    for field in fields:
        key = _mix(_mix(key) + (field + 1) * _GOLDEN)
    return key


def keys(*fields: Sequence[int]) -> Int[Tensor, " n"]:
    """`fold` of integers on the host. Up to `FEW` keys are computed with Python integers, which is faster."""
    if len(fields[0]) > FEW:
        return fold(*(torch.tensor(field, dtype=torch.long) for field in fields))
    return torch.tensor([key - (key >> 63 << 64) for key in _folded(*fields)], dtype=torch.long)


def _folded(*fields: Sequence[int]) -> list[int]:
    """`fold` with Python integers; the results are unsigned."""
    values = []
    for key, *rest in zip(*fields, strict=True):
        for field in rest:
            key = _mix_int(_mix_int(key & _MASK) + (field + 1) * _GOLDEN & _MASK)
        values.append(key)
    return values


def _mix_int(x: int) -> int:
    x = (x ^ x >> 30) * _FIRST & _MASK
    x = (x ^ x >> 27) * _SECOND & _MASK
    return x ^ x >> 31


FEW = 64  # keys
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift (the shift of int64 is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
