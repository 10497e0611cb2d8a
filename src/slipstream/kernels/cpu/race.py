"""Draws tokens by an exponential race (`race.cpp`). Its reference is `core.noise.race`.

Hashing a number for every token of a vocabulary takes a library some twenty passes over memory; here it is one. What is
left of a law that was drafted from is made on the way, where a library would take ten.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.core.law import Dense, Law, OneHot
from slipstream.core.noise import CounterNoise, race
from slipstream.core.verify.token import ResidualLaw, residual
from slipstream.kernels.cpu.compile import Unavailable, function, had
from slipstream.kernels.cpu.linear import POINTER, SIZE, parallel

SOURCE = Path(__file__).parent / "src" / "race.cpp"


class RaceKernel:
    """A library that passed its check."""

    def __init__(self, path: Path) -> None:
        team = ctypes.c_uint, POINTER
        self._call = function(path, "slipstream_race", POINTER, POINTER, SIZE, POINTER, *(SIZE,) * 4, POINTER, *team)
        where = POINTER, SIZE, POINTER, SIZE
        self._rest = function(
            path, "slipstream_rest", *(POINTER,) * 2, SIZE, POINTER, *where, *(SIZE,) * 3, POINTER, *team
        )
        self._parallel = parallel()
        self._check()

    def race(self, law: Law, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        if isinstance(law, ResidualLaw) and self._makes(law):
            return self.rest(law, key)
        if isinstance(law, Dense):
            ids, probs = None, law.probs
        else:
            ids, probs = law.support()
            ids = ids if ids.stride(1) == 1 else ids.contiguous()
        probs = probs if probs.stride(1) == 1 else probs.contiguous()
        key, out = key.contiguous(), torch.empty(len(key), dtype=torch.long)
        where, step = (None, 0) if ids is None else (ids.data_ptr(), ids.stride(0))
        sizes = probs.stride(0), probs.dtype == torch.float64, *probs.shape
        self._call(key.data_ptr(), where, step, probs.data_ptr(), *sizes, out.data_ptr(), *self._team)
        return out

    def rest(self, law: ResidualLaw, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """What is left of some laws, made and raced over."""
        whole, scale = law.target_probs.contiguous(), law.scale.contiguous()
        ids, taken = (None, law.draft.dense()) if isinstance(law.draft, Dense) else law.draft.support()
        taken, key = taken.contiguous(), key.contiguous()
        ids = None if ids is None else ids if ids.stride(1) == 1 else ids.contiguous()
        out = torch.empty(len(key), dtype=torch.long)
        where, step = (None, 0) if ids is None else (ids.data_ptr(), ids.stride(0))
        own = whole.data_ptr(), whole.stride(0), scale.data_ptr()
        sizes = taken.stride(0), taken.shape[1], *whole.shape
        self._rest(key.data_ptr(), *own, where, step, taken.data_ptr(), *sizes, out.data_ptr(), *self._team)
        return out

    @staticmethod
    def _makes(law: ResidualLaw) -> bool:
        """Whether this is the rest that it makes."""
        kinds = law.target_probs.dtype, law.scale.dtype, law.draft.support()[1].dtype
        return law.residual is residual and kinds == (torch.float32, torch.float64, torch.float32)

    @property
    def _team(self) -> tuple[int, int]:
        return torch.get_num_threads(), self._parallel

    def _check(self) -> None:
        generator = torch.Generator().manual_seed(0)
        probs = torch.rand(40, 300, generator=generator).pow(8)
        probs[:, 7] = 0
        key = torch.randint(-(2**62), 2**62, (40,), generator=generator)
        law = Dense(probs / probs.sum(-1, keepdim=True))
        scale = torch.rand(40, generator=generator, dtype=torch.float64)
        left = ResidualLaw(law.probs, scale, OneHot(torch.arange(40), 300))
        for sampled_law in (law, Dense(probs.double()), left):
            if not torch.equal(self.race(sampled_law, key), race(sampled_law, key)):
                raise Unavailable("it is compiled, but its results are wrong")


class KernelNoise(CounterNoise):
    """The same noise, raced by the kernel where the law lies on a CPU."""

    def race(self, law: Law, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        compiled = kernel() if law.device.type == "cpu" else None  # keys always are on the CPU
        return super().race(law, key) if compiled is None else compiled.race(law, key)


@functools.cache
def kernel() -> RaceKernel | None:
    """The kernel, where it can be had."""
    return had(RaceKernel, SOURCE)
