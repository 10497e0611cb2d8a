"""Drafts of a head in one call (`draft.cpp`); the reference that defines the results is `drafters.grow`.

Between two passes of the head there is little work: rank or sample the tokens after each slot, and choose the nodes of
the next level. In Python this takes longer than the head's pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from slipstream.core.sampling import Sampling
from slipstream.kernels.cpu.decoder import CachePointers, CpuNetwork, DecoderKernel
from slipstream.kernels.cpu.linear import POINTER, SIZE
from slipstream.kernels.cpu.truncate import address, truncations

INPUTS = ("embedding", "cos", "sin", "ids", "state", "logits")
PER_ROW = ("row", "start", "depth", "width", "nodes")


class CandidateMode(IntEnum):
    """How candidates are made; numbered as in draft.cpp."""

    LIKELY = 0  # the most probable tokens
    RACED = 1  # the tokens with the highest odds in the race with the noise of their position (`Noise.odds`)
    SURE = 2  # chains: the most probable token, without its probability
    DRAWN = 3  # chains: a token sampled from the distribution


class _DraftArgs(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in (*INPUTS, *PER_ROW, "floor", "temperature", "ends", "ends_from")),
        *((name, POINTER) for name in ("token", "parent", "count", "prob", "law", "key", "limits")),
        *((name, SIZE) for name in ("rows", "most", "levels", "mode")),
    )


@dataclass(frozen=True)
class RowDraftArgs:
    """The draft limits of one row."""

    row: int  # of the cache
    start: int  # place of the first drafted slot in that row
    depth: int
    width: int
    nodes: int
    floor: float  # drafting stops at a slot whose most probable token is less probable
    sampling: Sampling  # of which candidates are ranked or sampled
    ends: Sequence[int]  # end tokens, which have no successors
    keys: Sequence[int] = ()  # noise keys of the next positions, for RACED and DRAWN


@dataclass(frozen=True, eq=False)
class EmbeddingTables:
    """Lookup tables of the draft head."""

    embedding: Tensor  # [vocab, hidden]
    cos: Tensor  # [places, rotated] rotary embedding of every position
    sin: Tensor
    ids: Tensor  # [draft_vocab] token id of each logit


@dataclass(frozen=True, eq=False)
class DraftedNodes:
    """The draft of one row."""

    token: list[int]
    parent: list[int]  # numbered within the row, -1: the committed end
    chance: list[float]  # of each token after its parent
    law: Tensor  # [nodes, draft_vocab] the distributions tokens were sampled from, with DRAWN


def drafts(
    kernel: DecoderKernel,
    net: CpuNetwork,
    cache: CachePointers,
    tables: EmbeddingTables,
    mode: CandidateMode,
    row_args: Sequence[RowDraftArgs],
    state: Tensor,
    logits: Tensor,
) -> list[DraftedNodes]:
    """The draft of each row, from the states [rows, hidden] and logits [rows, draft_vocab] at their committed ends."""
    rows, most = len(row_args), max(args.nodes for args in row_args)
    levels = max(args.depth for args in row_args)
    per_row = [[getattr(args, name) for args in row_args] for name in PER_ROW]
    keys = [(*args.keys, *(0,) * (levels - len(args.keys))) for args in row_args]
    ends, ends_from = list[int](), [0]
    for args in row_args:
        ends += args.ends
        ends_from.append(len(ends))
    parts = [*per_row, ends_from, *keys, ends]
    integers = torch.tensor([x for part in parts for x in part], dtype=torch.long)
    reals = torch.tensor(
        [[args.floor for args in row_args], [args.sampling.temperature for args in row_args]], dtype=torch.float64
    )
    result, prob = torch.empty(2 * rows * most + rows, dtype=torch.long), torch.empty(rows, most)
    limits = truncations([args.sampling for args in row_args])
    law = torch.empty(rows, levels, net.outputs if mode is CandidateMode.DRAWN else 0)
    at, out, line = integers.data_ptr(), result.data_ptr(), 8 * rows
    after = at + 5 * line  # where each row's end tokens begin; then keys, then end tokens
    call = _DraftArgs(
        *(x.data_ptr() for x in (tables.embedding, tables.cos, tables.sin, tables.ids, state, logits)),
        *(at + n * line for n in range(len(PER_ROW))),
        *(reals.data_ptr(), reals.data_ptr() + line, after + 8 * (rows + 1) + levels * line, after),
        *(out, out + most * line, out + 2 * most * line, prob.data_ptr(), law.data_ptr(), after + 8 * (rows + 1)),
        address(limits),
        *(rows, most, levels, mode),
    )
    kernel.draft(net, cache, tables.cos.shape[1], ctypes.addressof(call), sum(per_row[PER_ROW.index("width")]))
    count = result[2 * rows * most :].tolist()
    token, parent = result[: 2 * rows * most].view(2, rows, most).tolist()
    probs = prob.tolist()
    return [DraftedNodes(token[r][:n], parent[r][:n], probs[r][:n], law[r, :n]) for r, n in enumerate(count)]
