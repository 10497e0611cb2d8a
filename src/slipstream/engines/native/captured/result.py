"""Reads the record of a captured cycle: the drafted and accepted tokens of each row, and the token after them.

The target's cache holds accepted tokens only, one after the other, when the record is read: these are what it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from slipstream.core.types import Origin
from slipstream.engines.job import ChainCounts, Job

PLAIN = (Origin.PLAIN,)
_new = tuple.__new__  # a named tuple of so many rows per millisecond, without the call of its own constructor


class CycleResult(NamedTuple):
    tokens: Sequence[int]  # drafted
    parents: Sequence[int]  # of each, among them; -1 is the committed end
    path: Sequence[int]  # the accepted ones, first to last
    kept: Sequence[int]  # which are these
    emitted: list[int]  # and the one after them
    origins: tuple[Origin, ...]  # of those
    logprobs: Sequence[float] = ()  # of the emitted tokens, where they are recorded
    top_logprobs: Sequence[Sequence[tuple[int, float]]] = ()  # the same of the most probable tokens

    @property
    def chain(self) -> bool:
        """Whether at most one token was drafted for each position."""
        return not self.tokens or isinstance(self.parents, range)

    @property
    def levels(self) -> list[int]:
        """How many tokens were drafted for the first position, the second, and so on."""
        if self.chain:
            return [1] * len(self.tokens)
        depth, counts = list[int](), list[int]()
        for parent in self.parents:
            depth.append(depth[parent] + 1 if parent >= 0 else 0)
            if depth[-1] == len(counts):
                counts.append(0)
            counts[depth[-1]] += 1
        return counts

    @property
    def judged(self) -> list[tuple[int, int]]:
        """Of each place along the accepted path that had candidates: which of them was accepted, -1 for none; how
        many there were."""
        ranks, slot = list[tuple[int, int]](), -1
        for node in (*self.path, None):
            line = [i for i, parent in enumerate(self.parents) if parent == slot]
            if line:
                ranks.append((-1 if node is None else line.index(node), len(line)))
            slot = -1 if node is None else node
        return ranks


class RowCycles(NamedTuple):
    """What several cycles, which drafted chains or nothing, emitted for one row."""

    job: Job
    tokens: list[int]
    origins: list[Origin]
    counts: list[ChainCounts]  # of each cycle


def told_chains(record: Sequence[list[int]], whole: bool = False) -> list[CycleResult]:
    """Of each row: accepted, next token, whether all had a law, drafted; tokens, and more that is not needed here.

    `whole`: the next token is the last drafted one where all of them were accepted, as in cascades."""
    results = []
    for line in record:
        if not (drafted := line[3]):
            results.append(_new(CycleResult, ((), (), (), (), [line[1]], PLAIN, (), ())))
            continue
        count, last, tokens = line[0], line[1], line[4 : 4 + drafted]
        rejected = count < drafted and not (whole and tokens[count] == last)  # no rejected token is drawn again
        kept = tokens[:count]
        parents, path, origins = _chain(drafted, count, rejected)
        results.append(_new(CycleResult, (tokens, parents, path, kept, [*kept, last], origins, (), ())))
    return results


@lru_cache
def _chain(drafted: int, accepted: int, rejected: bool) -> tuple[range, range, tuple[Origin, ...]]:
    """The parents of a chain's tokens, its accepted path, and where what is emitted comes from."""
    return range(-1, drafted - 1), range(accepted), _origins(accepted, True, rejected)


def told_trees(record: Sequence[list[int]], nodes: int) -> list[CycleResult]:
    """Of each row: accepted, next token, whether all had a law, drafted; `nodes` tokens and parents; the path."""
    results = []
    for count, last, _, drafted, *rest in record:
        tokens, parents, path = rest[:drafted], rest[nodes : nodes + drafted], rest[2 * nodes : 2 * nodes + count]
        kept = [tokens[i] for i in path]
        final = _origins(count, drafted > 0, (path[-1] if path else -1) in parents)
        results.append(CycleResult(tokens, parents, path, kept, [*kept, last], final))
    return results


@lru_cache
def _origins(kept: int, drafted: bool, rejected: bool) -> tuple[Origin, ...]:
    """Of what was kept, and of the token after it."""
    final = Origin.PLAIN if not drafted else Origin.RECOVERED if rejected else Origin.BONUS
    return (*[Origin.ACCEPTED] * kept, final)
