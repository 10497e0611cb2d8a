"""The sizes that captured cycles come in: a few, since each is captured when it is first met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.core.device import RECORDED_LOGPROBS, DeviceRule, DraftSize, GraphKey, next_power_of_two
from slipstream.core.types import Budget, Row
from slipstream.models.run.gpu.pass_sizes import parts_of

AHEAD = 256  # further tokens of each row that a policy's prices are for, at most
WIDEST = 1024  # tokens of a pass that is worth a graph
DEPTHS = (0, 1, 2, 3, 5, 8)  # that graphs are captured for: a row that drafts less leaves the rest out
LONG_DEPTHS = (15, 31)  # the same for drafters with long chains; with the committed end, 16 and 32 tokens
LEVELS, WIDTHS = (3, 6, 10, 16), (6, 8)  # the same for trees; none is larger
NODES = (8, 15, 24, 32, 48, 64)  # 15 and the committed end are as many tokens as a tile of a product has rows

PLAIN = DraftSize(0)
# to be tried where nothing was: a chain, long where the drafter has long ones, or a tree where there are no chains
FIRST = DraftSize(15), DraftSize(3), DraftSize(3, 6, 8)
GROWN = (DraftSize(3, 6, 8), DraftSize(6, 6, 15), DraftSize(10, 6, 24))  # trees that a chooser may choose from


@dataclass(frozen=True)
class BatchShape:
    """What all rows of a cycle come to."""

    rows: int
    longest: int
    cut: bool  # whether some want some tokens of a law alone
    logprobs: int | None = None  # most probable tokens that are recorded; None: no log-probability is wanted
    cached: int = 0  # tokens of all rows together

    @staticmethod
    def of(rows: Sequence[Row], ahead: int = 0) -> BatchShape:
        """`ahead`: the cached tokens are those half way through this number of further tokens of each row."""
        lengths = [row.length for row in rows]
        grown = sum([min(ahead, row.left) for row in rows]) // 2 if ahead else 0
        return BatchShape(len(rows), max(lengths), any(map(_cut, rows)), _recorded(rows), sum(lengths) + grown)

    def with_rows(self, count: int) -> BatchShape:
        """So many rows like these."""
        return replace(self, rows=count, cached=self.cached * count // self.rows)

    def used(self, size: DraftSize) -> int:
        """Places of the caches that a cycle may look at."""
        return self.longest + size.places + 1

    def lines(self, size: DraftSize, expected_rows: int = 1) -> int:
        """Rows that a graph is captured for: those there are, and those that will soon be, as far as they fit."""
        most = max(1, WIDEST // (size.slots + 1))
        return next_power_of_two(max(self.rows, min(expected_rows, 1 << (most.bit_length() - 1))))

    def key(self, size: DraftSize, rule: DeviceRule, rows: int) -> GraphKey:
        """The graph for so many rows. Graphs of trees never truncate laws."""
        return GraphKey(rows, size, rule, parts_of(self.used(size)), self.cut and not size.nodes, self.logprobs)

    def fits(self, key: GraphKey, rule: DeviceRule) -> bool:
        """Whether these rows can run in such a graph."""
        if key.rows < self.rows or key.logprobs != self.logprobs or not (key.nodes or key.cut == self.cut):
            return False
        return (key.rule is rule or key.rule == rule) and key.parts >= parts_of(self.used(key.size))


def _cut(row: Row) -> bool:
    """Whether only some tokens of a law are wanted."""
    wish = row.request.sampling
    return wish.temperature > 0 and bool(wish.top_k or wish.top_p < 1 or wish.min_p)


def _recorded(rows: Sequence[Row]) -> int | None:
    """The most probable tokens to record. Logits processors record log-probabilities by themselves, always."""
    wanted = [row.logprobs for row in rows if row.logprobs is not None and row.request.processor is None]
    return _least(RECORDED_LOGPROBS, max(wanted)) if wanted else None


def chain_depths(longest_chain: int | None) -> tuple[int, ...]:
    """The depths that graphs of chains are captured for. `longest_chain`: the drafter's (`Drafter.longest_chain`)."""
    return (*DEPTHS, *(depth for depth in LONG_DEPTHS if depth <= (longest_chain or 0)))


def deepest_chain(rows: int, longest_chain: int | None) -> int:
    """The longest chains of so many rows that one captured pass has room for."""
    return max((depth for depth in chain_depths(longest_chain) if rows * (depth + 1) <= WIDEST), default=0)


def up_to(depths: tuple[int, ...], deepest: int) -> tuple[int, ...]:
    """Of ascending depths, those that a drafter uses which drafts at most `deepest` levels: the last has room for
    them."""
    return tuple(depth for n, depth in enumerate(depths) if n == 0 or depths[n - 1] < deepest)


def size_for(budget: Sequence[Budget], rule: DeviceRule, longest_chain: int | None = None) -> DraftSize | None:
    """None where it is too large, or is not the drafter's to choose. Of trees that would make a pass too wide only the
    likeliest nodes are drafted: so many as there is room for."""
    deep = max(min(spend.depth, spend.shape.size if spend.shape else spend.depth) for spend in budget)
    shapes = [spend.shape for spend in budget if spend.depth and spend.shape is not None]
    if not deep or (not shapes and rule.chains):
        return DraftSize(_least(chain_depths(longest_chain), deep) or deep)
    nodes = max([deep, *(shape.nodes for shape in shapes)])
    wide = max([1, *(shape.width for shape in shapes)])
    depth, width, most = _least(LEVELS, deep), _least(WIDTHS, wide), _least(NODES, nodes)
    if depth is None or width is None or most is None or any(shape.parents for shape in shapes):
        return None
    fitting = [size for size in NODES if size <= most and len(budget) * (size + 1) <= WIDEST]
    return DraftSize(depth, width, fitting[-1]) if fitting else None


def _least(sizes: Sequence[int], wanted: int) -> int | None:
    return next((size for size in sizes if size >= wanted), None)
