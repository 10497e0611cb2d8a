"""A captured cycle that was launched and whose record the host has not read yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.core.device import DeviceRule, DraftSize, GraphKey
from slipstream.core.types import Row
from slipstream.drafters.device.interface import DeviceDrafter
from slipstream.engines.native.captured.chain_cycle import ChainCycle
from slipstream.engines.native.captured.graph_cache import GraphCache
from slipstream.engines.native.captured.parts import PendingRecord
from slipstream.engines.native.captured.sizes import DEPTHS
from slipstream.engines.native.captured.tree_cycle import TreeCycle

if TYPE_CHECKING:
    from slipstream.engines.native.captured.deferred import DeferredCycles

FAR = 1 << 62  # places


@dataclass(frozen=True, eq=False)
class Flight:
    """`lines` has for each row its line in the graph, the row, and the depth of the cycles after this one.

    `depths` are the depths of this cycle. None: they follow from the rows once the cycle before was read (`landed`)."""

    lines: Sequence[tuple[int, Row, int]]
    depths: Sequence[int] | None
    cycle: ChainCycle | TreeCycle
    graphs: GraphCache
    device: DeviceDrafter
    record: PendingRecord
    cut: bool  # whether some row asks for top-k, top-p or min-p
    by_policy: bool  # no user asked for this size
    began: float  # when it was launched
    read: int = 0  # tokens that the drafter had to read first
    captured: bool = False  # whether the graph was captured for it
    version: tuple[int, int] = (0, 0)  # of the target's and the drafter's caches: the graph holds their addresses
    room: Sequence[tuple[int, int]] = ()  # of the row of each line: its places, and those beyond its longest text
    ended: int = FAR  # places that rows which ended earlier have left on the device by now, at least
    overlapped: bool = False  # whether it was launched before the record of the last cycle was read

    @property
    def key(self) -> GraphKey:
        return self.cycle.key

    @property
    def size(self) -> DraftSize:
        return self.cycle.key.size

    @property
    def rule(self) -> DeviceRule:
        return self.cycle.key.rule

    def asked(self, lines: Sequence[tuple[int, Row, int]]) -> DraftSize:
        """The size that these rows ask for. That of the graph may be larger, because it was captured already."""
        if self.size.nodes or not self.size.depth:
            return self.size
        deepest = max([goal for _, _, goal in lines])
        return DraftSize(min((depth for depth in DEPTHS if depth >= deepest), default=self.size.depth))

    def rooms(self, step: int, deferred: DeferredCycles | None = None) -> tuple[int, int]:
        """The fewest places that are left of a row once this cycle has landed: of rows that go on, and of those that
        have ended, with which the device goes on. A cycle adds up to `step` tokens to a row. Of a row that has just
        ended, some were cut off, and this cycle adds more. On the device, too, no row outgrows its longest text.
        `deferred`: cycles that are not committed to them yet."""
        spare = min([beyond for _, beyond in self.room])
        if spare > step + self.size.places:  # as most often
            return spare, spare
        live, ended = FAR if deferred is None else deferred.room(step), self.ended
        for line, row, _ in self.lines:
            places, beyond = self.room[line]
            if row.finish_reason is None:
                if deferred is None:
                    live = min(live, max(beyond, places - row.length - step))
            else:
                ended = min(ended, places - row.length - 2 * step)
        return live, max(spare, ended - step) if ended < FAR else FAR

    def landed(self, context: int) -> tuple[list[int], list[Row], list[int]]:
        """Lines, rows and depths of the rows that have not finished since the launch; no depths where the drafter does
        not need them."""
        live = [n for n, (_, row, _) in enumerate(self.lines) if row.finish_reason is None]
        lines, rows = [self.lines[n][0] for n in live], [self.lines[n][1] for n in live]
        if not self.device.needs_depths:
            return lines, rows, []
        if not self.size.depth:
            return lines, rows, [0] * len(live)
        if self.depths is not None:
            return lines, rows, [self.depths[n] for n in live]
        spare = 0 if self.rule.needs_draft else 1
        return lines, rows, [min(self.lines[n][2], self.lines[n][1].room(context) - spare) for n in live]
