"""Chains of a stack with a Markov head in one kernel call (`kernels.cpu.markov`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.noise import Noise
from slipstream.core.shaping import ranking_sampling
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.dflash.markov import MarkovLogits
from slipstream.drafters.levels.one_call import candidate_mode, drafted, noise_keys
from slipstream.drafters.vocabulary import DraftVocabulary
from slipstream.kernels.cpu import decoder as cpu_decoder
from slipstream.kernels.cpu.decoder import DecoderKernel
from slipstream.kernels.cpu.markov import MarkovTables, RowChainArgs, markov_chains
from slipstream.models.weights.linears import PackedLinear


class CpuChains:
    """The Markov head on the CPU kernel."""

    def __init__(self, markov: MarkovLogits, kernel: DecoderKernel, vocabulary: DraftVocabulary) -> None:
        assert isinstance(markov.columns, PackedLinear)
        self._kernel, self._vocabulary = kernel, vocabulary
        weights = markov.previous.contiguous(), markov.embedding.contiguous(), markov.norm.weight.detach()
        self._tables = MarkovTables(markov.columns.packed, *weights, markov.norm.eps, vocabulary.ids)

    def draft(
        self,
        rows: Sequence[Row],
        budget: Sequence[Budget],
        noise: Noise,
        outputs: Float[Tensor, "drafting depth draft_vocab_and_width"],
    ) -> Draft | None:
        """The chains that `grow` would make; None if the kernel does not support them. `outputs`: of the stack for each
        row whose depth is above 0."""
        mode = candidate_mode(rows, budget, noise.has_fields, self._vocabulary.size)
        keys = None if mode is None else noise_keys(mode, budget, noise)
        if mode is None or keys is None:
            return None
        drafting = [(row, spend) for row, spend in zip(rows, budget, strict=True) if spend.depth]
        arguments = [_arguments(row, spend, own) for (row, spend), own in zip(drafting, keys, strict=True)]
        nodes = markov_chains(self._kernel, self._tables, mode, arguments, outputs.contiguous())
        return drafted(mode, budget, nodes, self._vocabulary)


def _arguments(row: Row, budget: Budget, keys: Sequence[int]) -> RowChainArgs:
    sampling, ends = ranking_sampling(row), tuple(row.request.ends)
    return RowChainArgs(row.tokens[-1], budget.depth, budget.stop_below, sampling, ends, keys)


def cpu_chains(markov: MarkovLogits, vocabulary: DraftVocabulary) -> CpuChains | None:
    """The head on the CPU kernel; None if its columns are not packed or there is no kernel."""
    if not isinstance(markov.columns, PackedLinear):
        return None
    if {markov.embedding.dtype, markov.previous.dtype, markov.norm.weight.dtype} != {torch.float32}:
        return None
    kernel = cpu_decoder.kernel(markov.columns.packed.row_bits)
    return None if kernel is None else CpuChains(markov, kernel, vocabulary)
