"""The layout of blocks that a non-causal stack runs in a captured cycle: every slot of a block sees the whole block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from slipstream.kernels.gpu.attention import Layout
from slipstream.kernels.gpu.cycle import CycleControl, chain_layout
from slipstream.kernels.gpu.launch import early, long, wait


@triton.jit(do_not_specialize=["block", "chunk", "chunks"])
def _lay_block(
    start, depth, owner, position, row, place, end, limit, count, block, chunk, chunks,
    LONG: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Slot n of row r is token r * block + n. Its place is n after the last committed token's."""
    if EARLY:
        wait()
    r = tl.program_id(0)
    begin, drafts, mine = tl.load(start + r) - 1, tl.load(depth + r) > 0, tl.load(owner + r)
    n = tl.arange(0, LONG)
    inside, at = n < block, r * block + n
    tl.store(row + at, mine + 0 * n, mask=inside)
    tl.store(position + at, tl.where(drafts, begin + n, 0), mask=inside)
    tl.store(place + at, tl.where(drafts, begin + n, -1), mask=inside)
    tl.store(end + at, tl.where(drafts, begin + block - 1 + 0 * n, -1), mask=inside)
    tl.store(limit + at, tl.where(drafts, begin + block + 0 * n, 0), mask=inside)
    size = tl.minimum(tl.maximum(block - n * chunk, 0), chunk)
    tl.store(count + r * chunks + n, tl.where(drafts, size, 0), mask=n < chunks)


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """One block of `block` slots in each row. `writes`: where keys and values go. `reads`: up to where slots see."""

    block: int
    writes: Layout
    reads: Layout

    @staticmethod
    def of(rows: int, block: int, chunk: int, device: torch.device) -> BlockLayout:
        writes = chain_layout(rows, block, chunk, device)
        return BlockLayout(block, writes, replace(writes, place=torch.zeros_like(writes.place)))

    def lay(self, control: CycleControl) -> None:
        """Lay a block after the committed end of each row that drafts."""
        rows, to, chunk = len(control.start), self.writes, self.writes.chunk
        _lay_block[(rows,)](
            *(control.start, control.depth, control.head_row, to.position, to.row, to.place, self.reads.place),
            *(to.limit, to.count, self.block, chunk, -(-self.block // chunk), long(self.block)),
            num_warps=1,
            **early(control.start, rows),
        )
