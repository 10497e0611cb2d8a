"""Chains of a block drafter with a Markov head in one call (`markov.cpp`).

The reference that defines the results is `drafters.dflash.markov` with `drafters.levels.grow`. In torch, the product,
the distribution and the draw of all levels take about as long as the pass over the block.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.core.sampling import Sampling
from slipstream.kernels.cpu.decoder import DecoderKernel
from slipstream.kernels.cpu.draft import CandidateMode, DraftedNodes
from slipstream.kernels.cpu.linear import POINTER, SIZE, PackedWeight, work
from slipstream.kernels.cpu.truncate import address, truncations


class _MarkovArgs(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("columns", "work", "embedding", "norm", "previous", "outputs", "ids")),
        *((name, POINTER) for name in ("last", "depth", "ends_from", "key", "ends", "floor", "temperature")),
        *((name, POINTER) for name in ("limits", "token", "count", "prob", "law")),
        *((name, SIZE) for name in ("rows", "levels", "hidden", "mode")),
        ("epsilon", ctypes.c_float),
    )


@dataclass(frozen=True, eq=False)
class MarkovTables:
    """The weights of the head, in float32 but for the columns."""

    columns: PackedWeight  # [draft_vocab, width]
    previous: Tensor  # [width, hidden]
    embedding: Tensor  # [vocab, hidden]
    norm: Tensor  # [hidden] weight of the norm of embeddings
    epsilon: float
    ids: Tensor  # [draft_vocab] token id of each logit


@dataclass(frozen=True)
class RowChainArgs:
    """The limits of one row's chain."""

    last: int  # the committed end
    depth: int
    floor: float  # drafting stops where the most probable token is less probable
    sampling: Sampling  # of which tokens are sampled or ranked
    ends: Sequence[int]  # end tokens, which have no successors
    keys: Sequence[int] = ()  # noise keys of the next positions, for DRAWN


def markov_chains(
    kernel: DecoderKernel, tables: MarkovTables, mode: CandidateMode, row_args: Sequence[RowChainArgs], outputs: Tensor
) -> list[DraftedNodes]:
    """The chain of each row. `outputs`: of the stack, [rows, levels, draft_vocab + width]."""
    columns = tables.columns
    assert outputs.is_contiguous(), "the kernel reads the outputs in place"
    assert columns.row_bits == kernel.row_bits, "the weights need the library for other activation bits"
    (rows, levels), drawn = outputs.shape[:2], mode is CandidateMode.DRAWN
    ends_from, ends = [0], list[int]()
    for args in row_args:
        ends += args.ends
        ends_from.append(len(ends))
    keys = [key for args in row_args for key in (*args.keys, *(0,) * (levels - len(args.keys)))]
    parts = [[args.last for args in row_args], [args.depth for args in row_args], ends_from, keys, ends]
    integers = torch.tensor([x for part in parts for x in part], dtype=torch.long)
    floors, temperatures = zip(*((args.floor, args.sampling.temperature) for args in row_args), strict=True)
    reals = torch.tensor([floors, temperatures], dtype=torch.float64)
    result, prob = torch.empty(rows * levels + rows, dtype=torch.long), torch.empty(rows, levels)
    law = torch.empty(rows, levels, columns.outputs if drawn else 0)
    limits = truncations([args.sampling for args in row_args])
    weights = tables.embedding, tables.norm, tables.previous, outputs, tables.ids
    places = [integers.data_ptr() + 8 * sum(map(len, parts[:n])) for n in range(len(parts))]
    call = _MarkovArgs(
        *(columns.address, work(kernel.row_bits), *(x.data_ptr() for x in weights), *places),
        *(reals.data_ptr(), reals.data_ptr() + 8 * rows, address(limits)),
        *(
            result.data_ptr(),
            result.data_ptr() + 8 * rows * levels,
            prob.data_ptr(),
            law.data_ptr(),
            rows,
            levels,
            tables.embedding.shape[1],
            mode,
            tables.epsilon,
        ),
    )
    kernel.markov(ctypes.addressof(call), columns.inputs * columns.outputs)
    token, count = result[: rows * levels].view(rows, levels).tolist(), result[rows * levels :].tolist()
    probs = prob.tolist()
    return [DraftedNodes(token[r][:n], list(range(-1, n - 1)), probs[r][:n], law[r, :n]) for r, n in enumerate(count)]
