"""The key of a captured graph. Keys are looked up several times per cycle, so they are tuples."""

from __future__ import annotations

from typing import NamedTuple

from slipstream.core.device import DeviceRule


class DraftSize(NamedTuple):
    """The largest draft of a cycle, rounded up to the sizes that graphs are captured for. No nodes: a chain."""

    depth: int
    width: int = 1
    nodes: int = 0

    @property
    def slots(self) -> int:
        """Drafted tokens of a row in the target's pass."""
        return self.nodes or self.depth

    @property
    def places(self) -> int:
        """Cache places beyond the committed ones: of the target, or of the head, which keeps all nodes it ran."""
        return max(self.slots, self.depth * self.width)

    def holds(self, other: DraftSize) -> bool:
        """Whether a graph of this size can run drafts of the other size."""
        alike = bool(self.nodes) == bool(other.nodes)
        return alike and self.depth >= other.depth and self.width >= other.width and self.nodes >= other.nodes


class GraphKey(NamedTuple):
    """`parts`: of the cache that attention reads. `cut`: rows may ask for top-k, top-p or min-p."""

    rows: int
    size: DraftSize
    rule: DeviceRule
    parts: int
    cut: bool = False

    @property
    def depth(self) -> int:
        return self.size.depth

    @property
    def width(self) -> int:
        return self.size.width

    @property
    def nodes(self) -> int:
        return self.size.nodes
