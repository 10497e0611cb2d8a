"""Tokens drawn by a race (`race.cpp`): what it must equal is `core.noise.race`.

Hashing a number for every token of a vocabulary takes a library some twenty passes over memory; here it is one.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from slipstream.core.law import Dense, Law
from slipstream.core.noise import CounterNoise, race
from slipstream.core.shapes import Int, Tensor
from slipstream.kernels.compile import Unavailable, function, had
from slipstream.kernels.cpu_linear import POINTER, SIZE

SOURCE = Path(__file__).with_name("race.cpp")


class Kernel:
    """A library that passed its check."""

    def __init__(self, path: Path) -> None:
        self._call = function(path, "slipstream_race", POINTER, POINTER, SIZE, POINTER, *(SIZE,) * 4, POINTER)
        self._check()

    def race(self, law: Law, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        if isinstance(law, Dense):
            ids, probs = None, law.probs
        else:
            ids, probs = law.support()
            ids = ids if ids.stride(1) == 1 else ids.contiguous()
        probs = probs if probs.stride(1) == 1 else probs.contiguous()
        key, out = key.contiguous(), torch.empty(len(key), dtype=torch.long)
        where, step = (None, 0) if ids is None else (ids.data_ptr(), ids.stride(0))
        sizes = probs.stride(0), probs.dtype == torch.float64, *probs.shape
        self._call(key.data_ptr(), where, step, probs.data_ptr(), *sizes, out.data_ptr())
        return out

    def _check(self) -> None:
        generator = torch.Generator().manual_seed(0)
        probs = torch.rand(40, 300, generator=generator).pow(8)
        probs[:, 7] = 0
        key = torch.randint(-(2**62), 2**62, (40,), generator=generator)
        for law in (Dense(probs / probs.sum(-1, keepdim=True)), Dense(probs.double())):
            if not torch.equal(self.race(law, key), race(law, key)):
                raise Unavailable("it is compiled, but its results are wrong")


class KernelNoise(CounterNoise):
    """The same noise, raced by the kernel where the law lies on a CPU."""

    def race(self, law: Law, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        found = kernel()
        here = law.support()[1].is_cpu  # keys always are
        return super().race(law, key) if found is None or not here else found.race(law, key)


@functools.cache
def kernel() -> Kernel | None:
    """The kernel, where it can be had."""
    return had(Kernel, SOURCE)
