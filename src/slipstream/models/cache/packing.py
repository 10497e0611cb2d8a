"""Packing: rows and drafted nodes as one sequence.

The entries that a row reads in a pass are its *line*: the committed tokens that are not cached yet (at least the last
one), then its drafted nodes. Entry i of a line lies at place start + i of the row, whatever the tree. Its
position is that of a token in the text, so siblings have the same position. An entry attends to the places below its
`limit` and to the places listed in `seen`. For a chain the limit is enough. A node on a branch lists its ancestors
beyond the limit, because the places between belong to other branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.types import Draft

Entry = tuple[int, int]
"""Token, and the entry of the same line it follows (-1: the cached text)."""


@dataclass(frozen=True)
class RowEntries:
    """The entries that one row reads in a pass, and the places that each may see."""

    row: int  # its first place in the cache
    start: int  # places cached before
    pending: int  # committed entries; the rest are drafted nodes
    token: Sequence[int]
    parent: Sequence[int]  # the entry that each follows; -1: the cached text
    position: Sequence[int]
    limit: Sequence[int]
    seen: Sequence[Sequence[int]]
    branched: bool = False  # whether an entry lists places in `seen`

    @staticmethod
    def of(row: int, start: int, pending: Sequence[int], nodes: Sequence[Entry] = ()) -> RowEntries:
        """The line of a row. `nodes` refer to their parents by their number within the row, or -1."""
        count = len(pending)
        if not nodes:  # a prompt, or plain decoding: nothing is made for each token
            end = start + count
            order = range(-1, count - 1), range(start, end), range(start + 1, end + 1)
            return RowEntries(row, start, count, pending, *order, [()] * count)
        entries = entries_of(pending, nodes)
        position, limit, visible = list[int](), list[int](), list[list[int]]()
        for i, (_, parent) in enumerate(entries):
            position.append(start if parent < 0 else position[parent] + 1)
            before = visible[parent] if parent >= 0 else []
            straight = parent == i - 1 and not before
            limit.append(start + i + 1 if straight else limit[parent] if parent >= 0 else start)
            visible.append([] if straight else [*before, start + i])
        token, parents = zip(*entries, strict=True)
        return RowEntries(row, start, count, token, parents, position, limit, visible, any(visible))

    def __len__(self) -> int:
        return len(self.token)

    @property
    def entries(self) -> list[Entry]:
        return list(zip(self.token, self.parent, strict=True))


@dataclass(frozen=True)
class RowSlice:
    """The entries of a line that one pass runs: those from `skip` on. Earlier ones ran already."""

    line: RowEntries
    skip: int = 0

    def __len__(self) -> int:
        return len(self.line) - self.skip

    @property
    def stretch(self) -> slice:
        """The places of the cache that its entries are written to."""
        first = self.line.row + self.line.start
        return slice(first + self.skip, first + len(self.line))


def entries_of(pending: Sequence[int], nodes: Sequence[Entry]) -> list[Entry]:
    """Committed tokens, then nodes with parents numbered among the nodes, as entries of one line."""
    last = len(pending) - 1
    entries = list(zip(pending, range(-1, last), strict=True))
    return entries + [(token, last if parent < 0 else last + 1 + parent) for token, parent in nodes]


def nodes_by_row(draft: Draft) -> list[list[int]]:
    """The packed node numbers of each row, in order."""
    table: list[list[int]] = [[] for _ in range(draft.tree.rows)]
    for i, (r, _) in enumerate(draft.tree.lists):
        table[r].append(i)
    return table


def local_nodes(draft: Draft) -> list[list[Entry]]:
    """Each row's nodes as entries with parents numbered within the row."""
    table: list[list[Entry]] = [[] for _ in range(draft.tree.rows)]
    if not len(draft.tree):
        return table
    number: list[int] = []
    for (r, p), token in zip(draft.tree.lists, draft.token.tolist(), strict=True):
        number.append(len(table[r]))
        table[r].append((token, number[p] if p >= 0 else -1))
    return table


def slot_index(lines: Sequence[RowEntries], draft: Draft) -> list[int]:
    """The packed index of each slot: the last committed token of every row first, then every node."""
    offset = [0]
    for line in lines:
        offset.append(offset[-1] + len(line))
    ends = [offset[r] + line.pending - 1 for r, line in enumerate(lines)]
    if not len(draft.tree):
        return ends
    nodes = [0] * len(draft.tree)
    for r, numbers in enumerate(nodes_by_row(draft)):
        for k, i in enumerate(numbers):
            nodes[i] = ends[r] + 1 + k
    return ends + nodes


def agree(run: Sequence[Entry], line: Sequence[Entry]) -> int:
    """How many leading entries are the same."""
    same = 0
    for ran, entry in zip(run, line, strict=False):
        if ran != entry:
            break
        same += 1
    return same
