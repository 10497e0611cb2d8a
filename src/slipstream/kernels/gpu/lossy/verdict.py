"""Runs the kernels of a lossy rule, in buffers of one captured cycle."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from slipstream.core.device import LossyTest
from slipstream.kernels.gpu import sample as draw
from slipstream.kernels.gpu.launch import early
from slipstream.kernels.gpu.lossy.kernels import KINDS, SUMMED, decide, find_peaks, race_rest, sum_laws
from slipstream.kernels.gpu.sample import LawBuffers, SamplingInputs
from slipstream.kernels.gpu.verify import VerdictTensors, settle


class LossyVerdict:
    """Verifies chains by a lossy rule. `laws`: the target's. `drafts`: the laws of the drafted tokens, by depth and
    then by row; None if they had probability 1."""

    def __init__(
        self, test: LossyTest, laws: LawBuffers, drafts: LawBuffers | None, slot_of: Tensor | None, width: int
    ) -> None:
        self._test, self._laws, self._width = test, laws, width
        self._drafts, self._slot_of = drafts, slot_of
        rows, device = len(laws.logits) // width, laws.logits.device
        shape = rows, max(1, width - 1), laws.blocks
        self._sums, self._high = torch.zeros(2, *shape, dtype=torch.float64, device=device)
        self._who = torch.zeros(shape, dtype=torch.int32, device=device)
        self._mixture = torch.zeros(rows, max(1, width - 1), 3, dtype=torch.float64, device=device)
        self._whole = torch.zeros(rows, dtype=torch.long, device=device)

    def run(
        self, token: Tensor, choice: Tensor, chance: Tensor, sampling: SamplingInputs, outcome: VerdictTensors
    ) -> None:
        """The verdict. `choice`: the target's most probable token at every slot."""
        laws, test, (rows, width) = self._laws, self._test, token.shape
        kind, vocab, (first, second) = KINDS[test.kind], laws.logits.shape[1], test.options
        sure, other = self._drafts is None, laws if self._drafts is None else self._drafts
        named, names = self._slot_of is not None, token if self._slot_of is None else self._slot_of
        wide, how = triton.next_power_of_2(laws.blocks), early(token, rows * width)
        target = (laws.logits, vocab, token)
        both = (laws.best, laws.total, other.logits, other.logits.shape[1], other.best, other.total, names)
        if test.kind in SUMMED:
            sum_laws[rows, width - 1, laws.blocks](
                *(*target, *both, sampling.temperature, self._sums, rows, first),
                *(kind, width, named, sure, draw.BLOCK),
                **how,
            )
        if test.kind == "token" and test.argmax:
            find_peaks[rows, width - 1, laws.blocks](
                *(*target, *both, sampling.temperature, self._sums, self._high, self._who, rows, first),
                *(width, named, sure, draw.BLOCK, wide),
                **how,
            )
        kept, following, sound = outcome
        decide[(rows,)](
            *(*target, sampling.depth, choice, laws.best, laws.total, other.total, chance, sampling.temperature),
            *(sampling.stream, sampling.start, self._sums, self._high, self._who, laws.blocks, self._mixture),
            *(self._whole, kept, following, sound, rows, first, second),
            *(kind, test.kind in SUMMED, test.argmax, sure, width, wide),
            num_warps=1,
            **how,
        )
        if test.argmax:
            return
        race_rest[rows, laws.blocks](
            *(*target, sampling.depth, *both, sampling.temperature, sampling.stream, sampling.start),
            *(kept, self._mixture, self._whole, laws.soonest, laws.drawn, rows, width),
            *(kind, named, sure, draw.BLOCK),
            **how,
        )
        settle(laws, following)
