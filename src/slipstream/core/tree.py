"""The topology of drafted tokens: packed nodes of several rows, each with a parent.

A node is one drafted token. The nodes of all rows are packed on one axis, parents before children. `parent` is the
packed index of the node before it, or -1 if the node continues the row's committed tokens. A chain is a tree with one
path. A row without drafted tokens has no nodes.

A *slot* is a position after which a next token may follow. Slot r < rows is the committed end of row r; slot rows + i
is node i. The target's law is indexed by slots. The law of node i's own token is at its parent's slot, `origin[i]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import torch

from slipstream.core.array_types import Bool, Int, Tensor

MAX_NODES = 1 << 16  # of a shape given level by level


class Siblings(StrEnum):
    """How the candidates after one slot are drawn.

    In every mode a draft stores for each node the law of its token *given the siblings before it*, and siblings are
    stored in the order in which they were drawn."""

    CHOSEN = "chosen"  # the most probable tokens, not sampled: every law is one-hot
    IID = "iid"  # sampled independently from one law; a token drawn twice gives two nodes
    DISTINCT = "distinct"  # sampled without replacement; fewer candidates if no probability is left


@dataclass(frozen=True)
class Shape:
    """How a draft may branch: a static tree, or limits for a tree that the drafter grows.

    Static: `parents` gives the parent of each node, -1 for the committed end. Grown: the drafter adds up to `nodes`
    nodes, at most `width` after one slot, in order of their path probability."""

    parents: tuple[int, ...] = ()
    nodes: int = 0
    width: int = 1

    def __post_init__(self) -> None:
        for i, p in enumerate(self.parents):
            if not -1 <= p < i:
                legal = f"-1 or a node before it, 0 to {i - 1}" if i else "-1"
                raise ValueError(
                    f"node {i} of the shape has parent {p}; a parent is {legal}, so that there is no cycle"
                )
        if bool(self.parents) == bool(self.nodes):
            raise ValueError("a shape is a list of parents or a number of nodes, one of the two")
        if self.nodes < 0:
            raise ValueError(f"nodes is {self.nodes}; it must be 1 or more")
        if self.width < 1:
            raise ValueError(f"width is {self.width}; it must be 1 or more")

    @staticmethod
    def levels(widths: Sequence[int]) -> Shape:
        """A static tree in which every node of level i has `widths[i]` children."""
        parents, level = list[int](), [-1]
        for width in widths:
            if width < 1:
                raise ValueError(f"a level of the shape has width {width}; it must be 1 or more")
            start = len(parents)
            if start + len(level) * width > MAX_NODES:
                raise ValueError(f"the shape has more than {MAX_NODES} nodes; give fewer candidates or levels")
            parents += [p for p in level for _ in range(width)]
            level = list(range(start, len(parents)))
        return Shape(tuple(parents))

    @property
    def depth(self) -> int | None:
        """The longest path of a static tree; None for a tree that the drafter grows."""
        depth = list[int]()
        for p in self.parents:
            depth.append(1 if p < 0 else depth[p] + 1)
        return max(depth, default=None)

    @property
    def size(self) -> int:
        return self.nodes or len(self.parents)

    @property
    def widest(self) -> int:
        """The maximum number of candidates after one slot."""
        return max(map(self.parents.count, {*self.parents}), default=self.width)

    def check(self, vocab: int, context: int) -> None:
        """Raise ValueError if the shape does not fit a model's vocabulary or context."""
        if self.size > context:
            raise ValueError(f"the tree has {self.size} nodes; the model's context holds {context}")
        if self.widest > vocab:
            raise ValueError(f"the tree has {self.widest} candidates after one token; the model has {vocab} tokens")


@dataclass(frozen=True, eq=False)
class Tree:
    """The topology of the drafts of `rows` rows: row and parent of every node."""

    rows: int
    row: Int[Tensor, " nodes"]
    parent: Int[Tensor, " nodes"]

    def __len__(self) -> int:
        return self.row.shape[0]  # a third of the time of `len`

    @staticmethod
    def chains(depths: Sequence[int], device: torch.device | str = "cpu") -> Tree:
        """One chain per row, row r with `depths[r]` nodes, packed row after row."""
        row = [r for r, depth in enumerate(depths) for _ in range(depth)]
        parent = [i - 1 if i and row[i - 1] == r else -1 for i, r in enumerate(row)]
        return Tree(len(depths), _ints(row, device), _ints(parent, device))

    @staticmethod
    def from_lists(rows: int, lists: list[tuple[int, int]]) -> Tree:
        """A tree from (row, parent) pairs, which are kept on the host as `lists`."""
        row, parent = torch.tensor(lists, dtype=torch.long).reshape(-1, 2).T.contiguous()
        tree = Tree(rows, row, parent)
        tree.__dict__["lists"] = lists
        return tree

    @staticmethod
    def of(rows: int, row: Sequence[int], parent: Sequence[int], device: torch.device | str = "cpu") -> Tree:
        """A checked tree: raises ValueError if it is not a forest in packed order."""
        for i, (r, p) in enumerate(zip(row, parent, strict=True)):
            if not 0 <= r < rows:
                raise ValueError(f"node {i} names row {r}; rows are 0 to {rows - 1}")
            if not -1 <= p < i:
                raise ValueError(f"node {i} has parent {p}; a parent is -1 or a node before it, 0 to {i - 1}")
            if p >= 0 and row[p] != r:
                raise ValueError(f"node {i} of row {r} has parent {p} in row {row[p]}")
        return Tree(rows, _ints(row, device), _ints(parent, device))

    def select(self, rows: Sequence[int]) -> tuple[Tree, list[int]]:
        """The tree of the given rows, renumbered from 0, and the packed indices of its nodes in this tree."""
        if len(rows) == self.rows:
            return self, list(range(len(self)))
        number, kept = {r: n for n, r in enumerate(rows)}, list[int]()
        place = {-1: -1}
        for i, (r, _) in enumerate(self.lists):
            if r in number:
                place[i] = len(kept)
                kept.append(i)
        selected = [self.lists[i] for i in kept]
        device = self.row.device
        return Tree(
            len(rows), _ints([number[r] for r, _ in selected], device), _ints([place[p] for _, p in selected], device)
        ), kept

    @cached_property
    def origin(self) -> Int[Tensor, " nodes"]:
        """The slot before each node: its parent's slot, or its row's committed end."""
        return torch.where(self.parent < 0, self.row, self.parent + self.rows)

    @cached_property
    def slot_row(self) -> Int[Tensor, " slots"]:
        return torch.cat([torch.arange(self.rows, device=self.row.device), self.row])

    @cached_property
    def lists(self) -> list[tuple[int, int]]:
        """(row, parent) of every node on the host: Python loops over few nodes are faster than tensor operations."""
        return list(zip(self.row.tolist(), self.parent.tolist(), strict=True))

    @cached_property
    def depth(self) -> Int[Tensor, " nodes"]:
        """Drafted tokens before each node on its path; 0 for a node at the committed end."""
        depth: list[int] = []
        for _, p in self.lists:
            depth.append(0 if p < 0 else depth[p] + 1)
        return _ints(depth, self.row.device)

    @cached_property
    def slot_depth(self) -> Int[Tensor, " slots"]:
        """Drafted tokens before the token that would follow each slot."""
        return torch.cat([torch.zeros(self.rows, dtype=torch.long, device=self.row.device), self.depth + 1])

    @cached_property
    def node(self) -> Int[Tensor, " nodes"]:
        """Index of each node within its own row. Noise is keyed by it, so it must not depend on other rows."""
        count = [0] * self.rows
        number = []
        for r, _ in self.lists:
            number.append(count[r])
            count[r] += 1
        return _ints(number, self.row.device)

    @cached_property
    def ancestors(self) -> Bool[Tensor, "nodes nodes"]:
        """ancestors[i, j]: node j is a proper ancestor of node i."""
        mask = [[False] * len(self) for _ in range(len(self))]
        for i, (_, p) in enumerate(self.lists):
            if p >= 0:
                mask[i] = mask[p].copy()
                mask[i][p] = True
        return torch.tensor(mask, dtype=torch.bool, device=self.row.device).reshape(len(self), len(self))

    @cached_property
    def children(self) -> list[list[int]]:
        """The nodes after every slot, in the order in which they were drawn."""
        table: list[list[int]] = [[] for _ in range(self.rows + len(self))]
        for i, (r, p) in enumerate(self.lists):
            table[r if p < 0 else self.rows + p].append(i)
        return table

    @cached_property
    def paths(self) -> list[list[int]]:
        """Every path from the committed end to a leaf, as packed node indices, in order of the leaves."""
        parents = [p for _, p in self.lists]
        leaves = sorted(set(range(len(self))) - set(parents))
        return [_path_to(parents, leaf) for leaf in leaves]

    @cached_property
    def lines(self) -> list[list[int]]:
        """The nodes of each row's chain, as packed indices; ValueError if a row branches."""
        table: list[list[int]] = [[] for _ in range(self.rows)]
        for i, (r, p) in enumerate(self.lists):
            if p != (table[r][-1] if table[r] else -1):
                raise ValueError(
                    f"row {r} drafts a tree, and this rule verifies chains; use a tree rule or draft chains"
                )
            table[r].append(i)
        return table

    @cached_property
    def chain(self) -> Int[Tensor, "rows depth"]:
        """`lines` as one tensor, padded with -1."""
        return padded(self.lines, self.row.device)

    def follow(self, choice: Sequence[int], token: Sequence[int]) -> list[list[int]]:
        """The path of each row that follows `choice`, the chosen token after every slot, as far as it was drafted."""
        table: list[list[int]] = [[] for _ in range(self.rows)]
        for i, (r, p) in enumerate(self.lists):
            if p == (table[r][-1] if table[r] else -1) and choice[r if p < 0 else self.rows + p] == token[i]:
                table[r].append(i)
        return table

    def end(self, path: Int[Tensor, "rows depth"]) -> Int[Tensor, " rows"]:
        """The slot at which each path ends: its last node, or the row's committed end if the path is empty."""
        start = torch.arange(self.rows, device=path.device)
        if path.shape[1] == 0:
            return start
        count = (path >= 0).sum(1)
        last = path.gather(1, (count - 1).clamp(min=0)[:, None])[:, 0]
        return torch.where(count > 0, last + self.rows, start)


def _path_to(parents: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def padded(table: list[list[int]], device: torch.device) -> Int[Tensor, "rows depth"]:
    """Lists of different lengths as one tensor, padded with -1."""
    width = max(map(len, table), default=0)
    lines = [line + [-1] * (width - len(line)) for line in table]
    return torch.tensor(lines, dtype=torch.long, device=device).reshape(len(table), width)


def _ints(values: Sequence[int], device: torch.device | str) -> Int[Tensor, " n"]:
    return torch.tensor(list(values), dtype=torch.long, device=device)
