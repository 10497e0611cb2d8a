"""Programmatic dependent launch: a kernel starts before the one before it has ended.

A pass of few tokens is a chain of short kernels, and between two of them a GPU is idle for as long as it takes to bring
up the next. Where it can (compute capability 9), the next one is brought up as soon as every program of this one has
begun. It does what depends on nobody, such as fetching its weights into the cache, and waits until all before it is
done and written: every program of every such kernel does, so whoever is done, all before it are.

Products of large weights were slower so, by a fifth on an H200; presumably since programs that come early go where
there is room just then, several to a processor beside others that have none.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

FEW = 16  # tokens of a pass whose products are ours, for more of which the library's are better made
SMALL = 1 << 24  # bytes of a weight


@triton.jit
def wait():
    """Wait for the kernel before, and let the next one be brought up; nothing computed is read or written before."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def fetch(lies):
    """Have what lies there, 128 bytes each, brought into the cache that all programs share."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lies.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


def long(width: int) -> int:
    """Room for so many tokens of a row: of most cycles the same, so that a kernel is compiled once for all of them."""
    return max(16, int(triton.next_power_of_2(width)))


def early(x: Tensor, tokens: int, weight: int = 0) -> dict[str, Any]:
    """How a kernel over so many tokens is launched that reads a weight of so many bytes."""
    if not x.is_cuda or not _can(x.device):
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True} if tokens <= FEW and weight <= SMALL else {"EARLY": True}


@cache
def _can(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
