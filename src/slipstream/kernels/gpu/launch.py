"""Programmatic dependent launch: a kernel starts before the preceding one has ended.

A pass of few tokens is a chain of short kernels. Between two of them the GPU is idle while the next one starts. On
compute capability 9 and above, the next kernel may start as soon as every program of the current one has begun. It
does what does not depend on earlier results, such as prefetching its weights, and then waits until all earlier
kernels have ended. Every program of every such kernel waits, so the order of results is kept.

Products with large weights became slower in this way, by a fifth on an H200. The likely reason: programs that start
early are placed where there is room at that moment, several on one processor while others have none.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

FEW = 64  # tokens of a pass whose kernels start early
SMALL = 1 << 24  # bytes of a weight


@triton.jit
def wait():
    """Wait for the preceding kernel, and allow the next one to start. No computed value may be read or written before
    this."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def fetch(lies):
    """Prefetch cache lines of 128 bytes at these addresses into the shared cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lies.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


def long(width: int) -> int:
    """The number of tokens per row that a kernel is compiled for. Most cycles share one number, so few variants are
    compiled."""
    return max(16, int(triton.next_power_of_2(width)))


def early(x: Tensor, tokens: int, weight: int = 0) -> dict[str, Any]:
    """The launch options of a kernel over so many tokens that reads a weight of so many bytes."""
    if not x.is_cuda or not _can(x.device):
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True} if tokens <= FEW and weight <= SMALL else {"EARLY": True}


@cache
def _can(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
