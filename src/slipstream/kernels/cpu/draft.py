"""Drafts of a head in one call (`draft.hpp`): what they must equal is `drafters.grow`.

Between two steps of a draft there is little to do: the likeliest few tokens after each slot, or one that is drawn, and
which of them to open next. In Python that takes longer than the head's pass over them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from slipstream.kernels.cpu.decoder import CachePointers, CpuNetwork, DecoderKernel
from slipstream.kernels.cpu.linear import POINTER, SIZE

READ = ("embedding", "cos", "sin", "ids", "state", "logits")
WISHES = ("row", "start", "depth", "width", "nodes")


class CandidateMode(IntEnum):
    """How candidates come about; numbered as in draft.hpp."""

    LIKELY = 0  # the likeliest of the law
    RACED = 1  # the likeliest to win on the noise of their position
    SURE = 2  # the likeliest, in chains: how likely it is is not asked
    DRAWN = 3  # from the law, in chains


class _DraftArgs(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in (*READ, *WISHES, "floor", "heat", "ends", "ends_from")),
        *((name, POINTER) for name in ("token", "parent", "count", "chance", "law", "key")),
        *((name, SIZE) for name in ("rows", "most", "levels", "how")),
    )


@dataclass(frozen=True)
class RowDraftArgs:
    """What one row may draft, and where: its row of the cache and the place of its first drafted slot."""

    row: int
    start: int
    depth: int
    width: int
    nodes: int
    floor: float  # what the likeliest token must reach for anything to follow
    heat: float  # the temperature at which candidates are ranked
    ends: Sequence[int]  # tokens that nothing follows
    keys: Sequence[int] = ()  # of the noise of the next positions, where candidates are drawn or raced


@dataclass(frozen=True, eq=False)
class EmbeddingTables:
    """What slots read: the embedding of every token, cosines and sines of every place, the tokens of the logits."""

    embedding: Tensor  # [vocab, hidden]
    cos: Tensor  # [places, turned]
    sin: Tensor
    ids: Tensor  # [draft_vocab]


@dataclass(frozen=True, eq=False)
class DraftedNodes:
    """The draft of one row."""

    token: list[int]
    parent: list[int]  # within the row, -1: the committed end
    chance: list[float]  # of each token after its parent
    law: Tensor  # [nodes, draft_vocab] what tokens were drawn from, where they were


def drafts(
    kernel: DecoderKernel,
    net: CpuNetwork,
    stay: CachePointers,
    words: EmbeddingTables,
    how: CandidateMode,
    wishes: Sequence[RowDraftArgs],
    state: Tensor,
    logits: Tensor,
) -> list[DraftedNodes]:
    """The draft of each row, from the states [rows, hidden] and logits [rows, draft_vocab] at their committed ends."""
    rows, most = len(wishes), max(wish.nodes for wish in wishes)
    levels = max(wish.depth for wish in wishes)
    own = [[getattr(wish, name) for wish in wishes] for name in WISHES]
    keys = [(*wish.keys, *(0,) * (levels - len(wish.keys))) for wish in wishes]
    ends, ends_from = list[int](), [0]
    for wish in wishes:
        ends += wish.ends
        ends_from.append(len(ends))
    parts = [*own, ends_from, *keys, ends]
    whole = torch.tensor([x for part in parts for x in part], dtype=torch.long)
    real = torch.tensor([[wish.floor for wish in wishes], [wish.heat for wish in wishes]], dtype=torch.float64)
    found, chance = torch.empty(2 * rows * most + rows, dtype=torch.long), torch.empty(rows, most)
    law = torch.empty(rows, levels, net.outputs if how is CandidateMode.DRAWN else 0)
    at, out, line = whole.data_ptr(), found.data_ptr(), 8 * rows
    after = at + 5 * line  # where each row's end tokens begin; then keys, then end tokens
    grove = _DraftArgs(
        *(x.data_ptr() for x in (words.embedding, words.cos, words.sin, words.ids, state, logits)),
        *(at + n * line for n in range(len(WISHES))),
        *(real.data_ptr(), real.data_ptr() + line, after + 8 * (rows + 1) + levels * line, after),
        *(out, out + most * line, out + 2 * most * line, chance.data_ptr(), law.data_ptr(), after + 8 * (rows + 1)),
        *(rows, most, levels, how),
    )
    kernel.draft(net, stay, words.cos.shape[1], ctypes.addressof(grove), sum(own[WISHES.index("width")]))
    count = found[2 * rows * most :].tolist()
    token, parent = found[: 2 * rows * most].view(2, rows, most).tolist()
    chances = chance.tolist()
    return [DraftedNodes(token[r][:n], parent[r][:n], chances[r][:n], law[r, :n]) for r, n in enumerate(count)]
