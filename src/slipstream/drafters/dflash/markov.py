"""The Markov head of a DFlash stack: the law of a slot also depends on the token before it in the draft.

A block's slots do not know the tokens that are drafted before them. This small network adds to the logits of a slot a
correction by the previous token and the slot's own state:

    logits = output · (x + correction · silu(previous · e + slot · x))

x is the normalised state of the slot and e the normalised embedding of the previous token. The stack still runs once
for a block. Per drafted token, one product with `output · correction` remains, which has `width` columns. The product
with `slot` is part of the stack's own: its rows follow the output rows (`outputs`).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.eagle.network import RMSNorm

WIDTHS = (16, 32, 64, 128, 256)


class MarkovHead(nn.Module):
    """The weights of the head, as they are trained and stored."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.previous = nn.Linear(hidden, width, bias=False)
        self.slot = nn.Linear(hidden, width, bias=False)
        self.correction = nn.Linear(width, hidden, bias=False)

    def forward(
        self, x: Float[Tensor, "*n hidden"], embedding: Float[Tensor, "*n hidden"]
    ) -> Float[Tensor, "*n hidden"]:
        """The corrected state of slots. `embedding`: of the tokens before them, normalised."""
        corrected: Tensor = x + self.correction(functional.silu(self.previous(embedding) + self.slot(x)))
        return corrected


class MarkovLogits(nn.Module):
    """The logits of slots, one depth after the other, from what the stack gave for the whole block.

    `embedding`: the target's. `norm`: of embeddings. The columns of `output · correction` are computed once; they are
    large and may be packed. The other weights stay as they are."""

    def __init__(
        self, head: MarkovHead, norm: RMSNorm, embedding: Float[Tensor, "vocab hidden"], output: Tensor
    ) -> None:
        super().__init__()
        columns = output @ head.correction.weight
        self.columns = nn.Linear(columns.shape[1], len(output), bias=False, device="meta")
        self.columns.weight = nn.Parameter(columns, requires_grad=False)
        self.previous, self.norm, self.embedding = head.previous.weight.detach(), norm, embedding
        self._vocab = len(output)

    def forward(
        self, outputs: Float[Tensor, "n draft_vocab_and_width"], token: Int[Tensor, " n"]
    ) -> Float[Tensor, "n draft_vocab"]:
        """`outputs`: of the stack for these slots. `token`: the token before each of them."""
        logits, slot = outputs[..., : self._vocab], outputs[..., self._vocab :]
        read = functional.linear(self.norm(functional.embedding(token, self.embedding)), self.previous)
        correction: Tensor = self.columns(functional.silu(read + slot))
        return correction.add_(logits)  # in place: allocating memory takes longer than adding


def with_slot_rows(output: Float[Tensor, "draft_vocab hidden"], head: MarkovHead | None) -> Float[Tensor, "n hidden"]:
    """The output rows, and after them those of the Markov head's slots, if there is one."""
    return output if head is None else torch.cat([output, head.slot.weight.detach().to(output)])
