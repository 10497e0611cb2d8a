"""Rules that share one field of noise between draft and target, on fields laid out by hand: no law to add up, but an
identity that must hold on each of them.

At a position the field gives every token a finishing time, and the target's choice is the first finisher under its law,
argmin E_x / p(x). Nothing else may enter: neither how far nor how wide was drafted. So fields are laid out in many
orders, near ties and runaways among them, over several positions in combination, and every text must be what the
target's own races give, worked out here without a draft. That a race has the right law is `check_coupled`'s part.
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
from slipstream.core.noise import Noise, Purpose, Site
from slipstream.core.tree import Shape
from slipstream.core.types import Row
from slipstream.plan.policy import Fixed

Field = tuple[float, ...]
"""Finishing times by token."""

SPREADS = 0.013, 1.7  # neighbours in the order of finish are so far apart: near ties, and runaways
LIMIT = 200  # combinations that are tried, about


class Laid(Noise):
    """The draws of one cycle from fields that are laid out beforehand."""

    def __init__(self, rows: Sequence[Row], fields: Mapping[Row, Sequence[Field]]) -> None:
        self._ahead = [fields[row][len(row.output) :] for row in rows]

    def flip(self, prob: Float[Tensor, " n"], site: Site) -> Bool[Tensor, " n"]:
        raise AssertionError("a rule on a shared field flips no coin")

    def draw(self, law: Law, site: Site, purpose: Purpose, stage: int = 0) -> Int[Tensor, " n"]:
        ids, probs = law.support()
        places = zip(site.row.tolist(), site.depth.tolist(), strict=True)
        times = torch.tensor([self._ahead[r][depth] for r, depth in places], dtype=torch.float64)
        return ids.gather(1, (times.gather(1, ids) / probs).argmin(1, keepdim=True))[:, 0]


def orders(vocab: int) -> Iterator[Field]:
    """Every token first, second and so on, forwards and backwards."""
    for spread, turn, step in product(SPREADS, range(vocab), (1, -1)):
        yield tuple(1 + spread * ((turn + step * token) % vocab) for token in range(vocab))


def check_fields(name: str, subject: Subject, pair: Pair, shapes: Mapping[str, Shape | None], length: int = 3) -> Check:
    """The text on combinations of fields over `length` positions, for every shape and depth."""
    fields = list(orders(pair.target.vocab))
    every = max(1, len(fields) ** length // LIMIT)
    every += next(n for n in range(len(fields)) if gcd(every + n, len(fields)) == 1)  # no position goes round in step
    tried = list(islice(product(fields, repeat=length), 0, None, every))
    expected = [_raced(pair, fields) for fields in tried]
    apart = []
    for what, shape in shapes.items():
        for depth in range(1, length):
            rows = {subject.row(pair, length): fields for fields in tried}
            made = replace(subject, policy=partial(Fixed, depth, shape=shape))
            made.run(pair, list(rows), noise=partial(_laid, fields=rows))
            wrong = sum(row.output != text for row, text in zip(rows, expected, strict=True))
            apart += [f"{wrong} differ with {what} of depth {depth}"] * bool(wrong)
    detail = f"{len(tried)} combinations of fields over {length} positions, {', '.join(shapes)}"
    return Check(name, "exact", not apart, "; ".join([detail, *apart]))


def _laid(rows: Sequence[Row], shared: Sequence[bool], fields: Mapping[Row, Sequence[Field]]) -> Noise:
    assert all(shared), "the rule does not ask for a shared field"
    return Laid(rows, fields)


def _raced(pair: Pair, fields: Sequence[Field]) -> list[int]:
    """What the target's own races give, one position after the other."""
    text: list[int] = []
    for field in fields:
        law = pair.target.law([*pair.prompt, *text]).tolist()
        finish = [time / p if p else float("inf") for time, p in zip(field, law, strict=True)]
        text.append(finish.index(min(finish)))
    return text
