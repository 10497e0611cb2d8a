"""The Markov head of a DFlash stack: the law of a slot also depends on the token before it in the draft.

A block's slots do not know the tokens that are drafted before them. This small network adds to the logits of a slot a
correction by the previous token and the slot's own state:

    logits = output · (x + correction · silu(previous · e + slot · x))

x is the normalised state of the slot and e the normalised embedding of the previous token. The stack still runs once
for a block. Per drafted token, one product with `output · correction` remains, which has `width` columns. The product
with `slot` is part of the stack's own: its rows follow the output rows (`outputs`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor

WIDTHS = (16, 32, 64, 128, 256)
KEPT = 1 << 13  # tokens whose products with `previous` are kept


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

    `embedding`: the target's. `norm`: of embeddings. The columns of `output · correction` are computed once. On a CPU
    the product of a token with `previous` is kept, because texts repeat their tokens."""

    def __init__(
        self, head: MarkovHead, norm: nn.Module, embedding: Float[Tensor, "vocab hidden"], output: Tensor
    ) -> None:
        super().__init__()
        self.previous, self._norm, self._embedding = head.previous, norm, embedding
        columns = output @ head.correction.weight
        self.columns = nn.Linear(columns.shape[1], len(output), bias=False, device="meta")
        self.columns.weight = nn.Parameter(columns, requires_grad=False)
        self._vocab = len(output)
        self._kept: dict[int, Tensor] = {}

    def forward(
        self, outputs: Float[Tensor, "n draft_vocab_and_width"], token: Int[Tensor, " n"]
    ) -> Float[Tensor, "n draft_vocab"]:
        """`outputs`: of the stack for these slots. `token`: the token before each of them."""
        return self._corrected(*self.parts(outputs), self._read(token))

    def parts(
        self, outputs: Float[Tensor, "*n draft_vocab_and_width"]
    ) -> tuple[Float[Tensor, "*n draft_vocab"], Float[Tensor, "*n width"]]:
        """The logits of slots without a correction, and what the correction reads of the slots."""
        return outputs[..., : self._vocab], outputs[..., self._vocab :]

    def after(
        self, logits: Float[Tensor, "n draft_vocab"], slot: Float[Tensor, "n width"], tokens: Sequence[int]
    ) -> Float[Tensor, "n draft_vocab"]:
        """The logits of slots after these tokens. The other arguments are `parts`."""
        if not logits.is_cpu:
            return self._corrected(logits, slot, self._read(torch.tensor(tokens, device=logits.device)))
        new = {*tokens} - self._kept.keys()
        if new and len(self._kept) + len(new) > KEPT:
            self._kept.clear()
            new = {*tokens}
        if new:
            read = self._read(torch.tensor([*new])).detach()
            self._kept.update((token, read[n : n + 1]) for n, token in enumerate(new))
        rows = [self._kept[token] for token in tokens]
        return self._corrected(logits, slot, rows[0] if len(rows) == 1 else torch.cat(rows))

    def _read(self, token: Int[Tensor, " n"]) -> Float[Tensor, "n width"]:
        read: Tensor = self.previous(self._norm(functional.embedding(token, self._embedding)))
        return read

    def _corrected(
        self, logits: Float[Tensor, "n draft_vocab"], slot: Float[Tensor, "n width"], read: Float[Tensor, "n width"]
    ) -> Float[Tensor, "n draft_vocab"]:
        correction: Tensor = self.columns(functional.silu(read + slot))
        return correction.add_(logits)  # in place: allocating memory takes longer than adding


def with_slot_rows(output: Float[Tensor, "draft_vocab hidden"], head: MarkovHead | None) -> Float[Tensor, "n hidden"]:
    """The output rows, and after them those of the Markov head's slots, if there is one."""
    return output if head is None else torch.cat([output, head.slot.weight.detach().to(output)])
