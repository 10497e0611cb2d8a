"""The Markov head of a DFlash stack: logits of one slot per row, by the token before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.launch import early, wait

ROWS, BLOCK = 16, 64  # rows and logits of a program


@triton.jit(do_not_specialize=["rows", "step"])
def _correct(
    token, step, table, outputs, outputs_step, columns, out, out_step, rows, vocab,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out = outputs + columns · silu(table[token] + the outputs after the logits)."""
    at, inner = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    known = at < vocab
    column = tl.load(columns + at[:, None] * WIDTH + inner[None, :], mask=known[:, None], other=0.0)
    if EARLY:
        wait()
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    here = row < rows
    word = tl.load(token + row * step, mask=here, other=0)
    state = tl.load(table + word[:, None] * WIDTH + inner[None, :], mask=here[:, None], other=0.0).to(tl.float32)
    state += tl.load(outputs + row[:, None] * outputs_step + vocab + inner[None, :], mask=here[:, None], other=0.0)
    state *= tl.sigmoid(state)
    precision: tl.constexpr = "ieee" if columns.dtype.element_ty == tl.float32 else "tf32"
    added = tl.dot(state.to(column.dtype), tl.trans(column), input_precision=precision)
    both = here[:, None] & known[None, :]
    before = tl.load(outputs + row[:, None] * outputs_step + at[None, :], mask=both, other=0.0)
    tl.store(out + row[:, None] * out_step + at[None, :], before + added, mask=both)


def correct(token: Tensor, table: Tensor, outputs: Tensor, columns: Tensor, out: Tensor) -> None:
    """Logits of one slot per row, [rows, draft_vocab]. `token`: the tokens before the slots. `outputs`: logits without
    the correction and then what the head reads of the slots, [rows, draft_vocab + width]. `table`: what it reads of
    every token, [vocab, width]. `columns`: [draft_vocab, width]."""
    (rows, vocab), width = out.shape, columns.shape[1]
    _correct[triton.cdiv(vocab, BLOCK), triton.cdiv(rows, ROWS)](
        *(token, token.stride(0), table, outputs, outputs.stride(0), columns, out, out.stride(0), rows, vocab),
        *(width, ROWS, BLOCK),
        **early(outputs, rows),
    )


@torch.no_grad()
def token_table(previous: Tensor, norm: torch.nn.Module, embedding: Tensor, chunk: int = 8192) -> Tensor:
    """What the head reads of every token of the target's vocabulary, [vocab, width]."""
    return torch.cat([norm(part) @ previous.T for part in embedding.split(chunk)]).contiguous()
