"""Which tree pays: shapes written by hand, their worth, and the best one for so many nodes.

A drafted node counts when it is reached and accepted. With `accept[d][k]`, the probability that after d accepted tokens
it is candidate k that is accepted, a node's chance is the product along its path, and a tree's expected accepted tokens
are the sum of its nodes' chances (arXiv 2402.12374). So the best tree of n nodes puts an optimal subtree under each of
the first few candidates: dynamic programming over depth, rank and nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import NamedTuple

from slipstream.core.tree import Shape
from slipstream.plan.policy.config import TreeConfig

Acceptance = Sequence[Sequence[float]]
"""By depth, then by rank: how likely this candidate is the accepted one, given that the tokens before it were."""


def parse(words: str | int | Shape) -> Shape:
    """`24`: up to so many nodes, where the drafter thinks best; `4x2x1`: candidates after each node, level by level;
    `-1,-1,0`: the parent of every node."""
    if isinstance(words, Shape):
        return words
    text = str(words).strip()
    try:
        if "x" in text:
            return Shape.levels([int(part) for part in text.split("x")])
        if "," in text or text.startswith("-"):
            return Shape(tuple(int(part) for part in text.split(",")))
        nodes = int(text)
    except ValueError as error:
        if "invalid literal" not in str(error):
            raise
        legal = "write 24 (nodes), 4x2x1 (candidates by level) or -1,-1,0 (parents)"
        raise ValueError(f"the tree is {text!r}; {legal}") from error
    if nodes < 1:
        raise ValueError(f"the tree has {nodes} nodes; it must be 1 or more")
    return Shape(nodes=nodes, width=TreeConfig().width)


def expected(parents: Sequence[int], accept: Acceptance) -> float:
    """Expected accepted tokens of a static tree; a node beyond what is known counts nothing."""
    chance, depth, rank = list[float](), list[int](), list[int]()
    for i, p in enumerate(parents):
        depth.append(0 if p < 0 else depth[p] + 1)
        rank.append(sum(q == p for q in parents[:i]))
        row = accept[depth[i]] if depth[i] < len(accept) else ()
        here = row[rank[i]] if rank[i] < len(row) else 0.0
        chance.append(here * (1.0 if p < 0 else chance[p]))
    return sum(chance)


def best_shape(nodes: int, accept: Acceptance) -> tuple[int, ...]:
    """The parents of the tree of at most `nodes` nodes with the most expected accepted tokens, depth by depth."""
    return best_shapes(nodes, accept)[-1]


def best_shapes(nodes: int, accept: Acceptance) -> list[tuple[int, ...]]:
    """The best tree for every number of nodes from 0 to `nodes`, from one table."""
    if nodes < 0:
        raise ValueError(f"nodes is {nodes}; it must be 0 or more")

    @cache
    def below(depth: int, rank: int, left: int) -> tuple[float, int]:
        """The best of `left` nodes as candidates `rank` and later at a depth, with what follows them; and how many of
        these nodes candidate `rank` and what follows it take, 0 where there are none."""
        if not left or depth == len(accept) or rank == len(accept[depth]):
            return 0.0, 0
        here = accept[depth][rank]
        offers = [
            (here * (1 + below(depth + 1, 0, own - 1)[0]) + below(depth, rank + 1, left - own)[0], -own)
            for own in range(1, left + 1)
        ]
        value, own = max(offers)
        return value, -own

    def build(depth: int, rank: int, left: int, parent: int, made: list[tuple[int, int]]) -> None:
        own = below(depth, rank, left)[1]
        if own:
            made.append((depth, parent))
            build(depth + 1, 0, own - 1, len(made) - 1, made)
            build(depth, rank + 1, left - own, parent, made)

    found = []
    for count in range(nodes + 1):
        made: list[tuple[int, int]] = []
        build(0, 0, count, -1, made)
        order = sorted(range(len(made)), key=lambda i: made[i][0])
        place = {node: n for n, node in enumerate(order)} | {-1: -1}
        found.append(tuple(place[made[i][1]] for i in order))
    return found


class Node(NamedTuple):
    """A place in a tree: how likely its token is emitted; its depth from 1; its rank."""

    chance: float
    depth: int
    rank: int


def best_first(nodes: int, accept: Acceptance, floor: float = 0.0) -> list[Node]:
    """Up to `nodes` places in falling order of their chance. Where no candidate is likelier than the one before it,
    the first n of them are the best tree of n nodes, for every n: no table needed."""
    found: list[Node] = []
    heap = [(-accept[0][0], 1, 0, 1.0)] if accept else []  # and the chance of what it follows
    while heap and len(found) < nodes and -heap[0][0] > floor:
        negative, depth, rank, before = heappop(heap)
        found.append(Node(-negative, depth, rank))
        if rank + 1 < len(accept[depth - 1]):
            heappush(heap, (-before * accept[depth - 1][rank + 1], depth, rank + 1, before))
        if depth < len(accept):
            heappush(heap, (negative * accept[depth][0], depth + 1, 0, -negative))
    return found


def choose(
    nodes: int, accept: Acceptance, score: Callable[[int], float], step: float, rows: int = 1
) -> tuple[tuple[int, ...], float]:
    """The tree that emits most tokens per second, and how many: each of `rows` rows drafts it, a pass over n tokens
    costs `score(n)` seconds and each level of drafting `step`. An empty tree is plain decoding, one path a chain."""
    offers = []
    for parents in best_shapes(nodes, accept):
        depth = Shape(parents).depth or 0 if parents else 0
        seconds = score(rows * (1 + len(parents))) + step * depth
        offers.append((rows * (1 + expected(parents, accept)) / seconds, -len(parents), parents))
    speed, _, parents = max(offers)
    return parents, speed
