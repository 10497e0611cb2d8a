"""What the record of a captured cycle says of a row: what was drafted, what was accepted of it, what follows.

The target's cache holds accepted tokens only, one after the other, when the record is read: these are what it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.types import Origin


@dataclass(frozen=True, slots=True)
class Told:
    tokens: list[int]  # drafted
    parents: Sequence[int]  # of each, among them; -1 is the committed end
    path: Sequence[int]  # the accepted ones, first to last
    last: int  # the token after them

    @property
    def kept(self) -> list[int]:
        return [self.tokens[i] for i in self.path]

    @property
    def emitted(self) -> list[int]:
        return [*self.kept, self.last]

    @property
    def origins(self) -> list[Origin]:
        """Of the emitted tokens."""
        return [Origin.ACCEPTED] * len(self.path) + [self._final]

    @property
    def _final(self) -> Origin:
        if not self.tokens:
            return Origin.PLAIN
        rejected = (self.path[-1] if self.path else -1) in self.parents
        return Origin.RECOVERED if rejected else Origin.BONUS

    @property
    def levels(self) -> list[int]:
        """How many tokens were drafted for the first position, the second, and so on."""
        if isinstance(self.parents, range):  # a chain
            return [1] * len(self.parents)
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
        found, slot = list[tuple[int, int]](), -1
        for node in (*self.path, None):
            line = [i for i, parent in enumerate(self.parents) if parent == slot]
            if line:
                found.append((-1 if node is None else line.index(node), len(line)))
            slot = -1 if node is None else node
        return found


def told_chains(record: Sequence[Sequence[float]]) -> list[Told]:
    """Of each row: accepted, next token, whether all had a law, drafted; tokens, and more that is not needed here."""
    return [_chain(int(line[0]), int(line[1]), [int(token) for token in line[4 : 4 + int(line[3])]]) for line in record]


def _chain(kept: int, last: int, tokens: list[int]) -> Told:
    return Told(tokens, range(-1, len(tokens) - 1), range(kept), last)


def told_trees(record: Sequence[Sequence[float]], nodes: int) -> list[Told]:
    """Of each row: accepted, next token, whether all had a law, drafted; `nodes` tokens and parents; the path."""
    found = []
    for line in record:
        kept, last, _, drafted, *rest = map(int, line)
        parents, path = rest[nodes : nodes + drafted], rest[2 * nodes : 2 * nodes + kept]
        found.append(Told(rest[:drafted], parents, path, last))
    return found
