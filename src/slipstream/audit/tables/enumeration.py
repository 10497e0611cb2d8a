"""Enumerates every outcome of every draw of the shipped loop, with its probability, as a tree of decisions.

A universe is one path through that tree: a row that follows a script of decisions. Past the end of the script it takes
the first option and records the others for later universes. All universes known so far run as one ragged batch, so the
batched code is what is enumerated. Each draw has a key. A key that occurs twice in a universe is an error, because the
second draw would repeat the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.core.law import Law
from slipstream.core.loop import NoiseFactory
from slipstream.core.noise import InnerCycle, Noise, Purpose, Site
from slipstream.core.types import Row

Key = tuple[int, ...]  # the start of the cycle (an inner cycle adds its own fields), node, purpose
LATER = -1  # part of the keys of draws that are made before their cycle begins


IMPOSSIBLE = 1e-13  # a probability this small is rounding, which a replay may not repeat to the bit


@dataclass
class Universe:
    """One path through the tree of decisions."""

    script: list[int]
    prob: float = 1.0
    taken: list[int] = field(default_factory=list)
    untried: list[list[int]] = field(default_factory=list)
    keys: set[Key] = field(default_factory=set)
    faults: set[str] = field(default_factory=set)

    def decide(self, probs: Sequence[float], key: Key) -> int:
        """Take one option. A draw with one possible outcome is no decision."""
        if key in self.keys:
            self.faults.add("a random number is used for two draws")
        if abs(sum(probs) - 1) > 1e-9:
            self.faults.add("a law that is drawn from does not sum to 1")
        self.keys.add(key)
        options = [i for i, p in enumerate(probs) if p > IMPOSSIBLE]
        choice = options[0] if options else 0
        if len(options) > 1:
            depth = len(self.taken)
            if depth < len(self.script):
                choice = self.script[depth]
            else:
                self.untried += [[*self.taken, other] for other in options[1:]]
            self.taken.append(choice)
        self.prob *= probs[choice]
        return choice


class Scripted(Noise):
    """The draws of one cycle, decided by the universes of its rows."""

    def __init__(self, universes: Sequence[Universe], starts: Sequence[Key]) -> None:
        self._universes, self._starts = universes, starts

    def inner(self, cycle: InnerCycle) -> Scripted:
        starts = zip(cycle.rows, cycle.drafted, strict=True)
        return Scripted(
            [self._universes[r] for r in cycle.rows],
            [(*self._starts[r], cycle.stage, cycle.branch, drafted) for r, drafted in starts],
        )

    def later(self, rows: Sequence[int], tokens: Sequence[int]) -> Scripted:
        """Draws of a later cycle have keys of their own, because a draft that is discarded is drawn again.

        That the two share random numbers is harmless if nothing depends on the discarded draft, so this is exact."""
        starts = zip(rows, tokens, strict=True)
        return Scripted(
            [self._universes[r] for r in rows],
            [(*self._starts[r], count, LATER) if count else self._starts[r] for r, count in starts],
        )

    def flip(self, prob: Float[Tensor, " n"], site: Site) -> Bool[Tensor, " n"]:
        options = [[1 - p, p] for p in prob.tolist()]
        return torch.tensor(self._decide(options, site, Purpose.ACCEPT), dtype=torch.bool)

    def draw(self, law: Law, site: Site, purpose: Purpose) -> Int[Tensor, " n"]:
        ids, probs = law.support()
        chosen = self._decide(probs.tolist(), site, purpose)
        return ids.gather(1, torch.tensor(chosen, dtype=torch.long)[:, None])[:, 0]

    def _decide(self, options: list[list[float]], site: Site, purpose: Purpose) -> list[int]:
        places = zip(site.row.tolist(), site.node.tolist(), options, strict=True)
        return [self._universes[r].decide(p, (*self._starts[r], node, purpose)) for r, node, p in places]


@dataclass(frozen=True)
class Outcome:
    """A finished universe."""

    prob: float
    row: Row
    faults: set[str]


def outcomes(new_row: Callable[[], Row], run: Callable[[list[Row], NoiseFactory], object]) -> Iterator[Outcome]:
    """Every outcome of one row under `run`, which decodes given rows with given noise."""
    scripts: list[list[int]] = [[]]
    while scripts:
        universes = {new_row(): Universe(script) for script in scripts}

        def noise(rows: Sequence[Row], shared: Sequence[bool], universes: dict[Row, Universe] = universes) -> Noise:
            assert not any(shared), (
                "a shared field is one draw for several laws; it is audited by closed form and replay"
            )
            return Scripted([universes[row] for row in rows], [(row.length,) for row in rows])

        run(list(universes), noise)
        yield from (Outcome(universe.prob, row, universe.faults) for row, universe in universes.items())
        scripts = [script for universe in universes.values() for script in universe.untried]
