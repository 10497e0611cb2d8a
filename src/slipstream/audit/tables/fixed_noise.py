"""Checks the coupled rule on fixed noise: the emitted text must be the target's own choice, whatever was drafted.

At a position the noise gives every token an exponential number E_x, and the target chooses argmin E_x / p(x). The depth
and the shape of the draft must not matter. So the noise is fixed to many orders of the tokens, with near ties and clear
winners among them, in combinations over several positions. Every text must equal the target's choices, which are
computed here without a draft. `check_coupled` shows that the choice has the right law.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from math import gcd

import torch

from slipstream.audit.check import Check
from slipstream.audit.subject import Pair, Subject
from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.core.law import Law
from slipstream.core.noise import InnerCycle, Noise, Purpose, Site
from slipstream.core.tree import Shape
from slipstream.core.types import Row
from slipstream.plan.policy.policies import Fixed

Field = tuple[float, ...]
"""The exponential numbers of one position, by token."""

SPREADS = 0.013, 1.7  # distance of neighbours in the order: near ties, and clear winners
LIMIT = 200  # combinations that are tried, approximately


class FixedNoise(Noise):
    """The draws of one cycle from fixed fields."""

    def __init__(self, next_fields: Sequence[Sequence[Field]]) -> None:
        """`next_fields`: the fields of each row from its committed end on."""
        self._next_fields = next_fields

    def inner(self, cycle: InnerCycle) -> FixedNoise:
        assert not cycle.branch, "another continuation has draws of its own"
        return FixedNoise([self._next_fields[r][n:] for r, n in zip(cycle.rows, cycle.drafted, strict=True)])

    def later(self, rows: Sequence[int], tokens: Sequence[int]) -> FixedNoise:
        return FixedNoise([self._next_fields[r][count:] for r, count in zip(rows, tokens, strict=True)])

    @property
    def has_fields(self) -> bool:
        return True

    def flip(self, prob: Float[Tensor, " n"], site: Site) -> Bool[Tensor, " n"]:
        raise AssertionError("a rule on a shared field flips no coin")

    def draw(self, law: Law, site: Site, purpose: Purpose) -> Int[Tensor, " n"]:
        ids, probs = law.support()
        places = zip(site.row.tolist(), site.depth.tolist(), strict=True)
        times = torch.tensor([self._next_fields[r][depth] for r, depth in places], dtype=torch.float64)
        return ids.gather(1, (times.gather(1, ids) / probs).argmin(1, keepdim=True))[:, 0]


def orders(vocab: int) -> Iterator[Field]:
    """Every token first, second and so on, forwards and backwards."""
    for spread, turn, step in product(SPREADS, range(vocab), (1, -1)):
        yield tuple(1 + spread * ((turn + step * token) % vocab) for token in range(vocab))


def check_fields(name: str, subject: Subject, pair: Pair, shapes: Mapping[str, Shape | None], length: int = 3) -> Check:
    """The text on combinations of fields over `length` positions, for every shape and depth."""
    fields = list(orders(pair.target.vocab))
    step = max(1, len(fields) ** length // LIMIT)
    while gcd(step, len(fields)) > 1:  # coprime, so that every position gets all fields
        step += 1
    tried = list(islice(product(fields, repeat=length), 0, None, step))
    expected = [_target_choices(pair, fields) for fields in tried]
    apart = []
    for shape_name, shape in shapes.items():
        for depth in range(1, length):
            rows = {subject.row(pair, length): fields for fields in tried}
            fixed = replace(subject, policy=partial(Fixed, depth, shape=shape))
            fixed.run(pair, list(rows), noise=partial(_fixed_noise, fields=rows))
            wrong = sum(row.output != text for row, text in zip(rows, expected, strict=True))
            apart += [f"{wrong} differ with {shape_name} of depth {depth}"] * bool(wrong)
    detail = f"{len(tried)} combinations of noise over {length} positions, {', '.join(shapes)}"
    return Check(name, "exact", not apart, "; ".join([detail, *apart]))


def _fixed_noise(rows: Sequence[Row], shared: Sequence[bool], fields: Mapping[Row, Sequence[Field]]) -> Noise:
    assert all(shared), "the rule does not ask for a shared field"
    return FixedNoise([fields[row][len(row.output) :] for row in rows])


def _target_choices(pair: Pair, fields: Sequence[Field]) -> list[int]:
    """The target's choice at one position after the other."""
    text: list[int] = []
    for field in fields:
        law = pair.target.law([*pair.prompt, *text]).tolist()
        finish = [time / p if p else float("inf") for time, p in zip(field, law, strict=True)]
        text.append(finish.index(min(finish)))
    return text
