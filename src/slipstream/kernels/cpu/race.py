"""Samples tokens by an exponential race (`race.cpp`). Its reference is `core.noise.race`. Computes laws as well.

In torch, a race over the vocabulary takes about twenty passes over memory, and computing a residual distribution takes
about ten. The kernel computes the residual and runs the race in one pass each.
"""

from __future__ import annotations

import ctypes
import functools
import random
from collections.abc import Sequence
from pathlib import Path

import torch

from slipstream.core import sampling
from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.law import Dense, Law, OneHot
from slipstream.core.noise import CounterNoise, race
from slipstream.core.sampling import Sampling
from slipstream.core.verify.token import ResidualLaw, residual
from slipstream.kernels.cpu.compile import Unavailable, function, load_or_none
from slipstream.kernels.cpu.linear import POINTER, SIZE, parallel
from slipstream.kernels.cpu.truncate import address, truncations

SOURCE = Path(__file__).parent / "src" / "laws" / "race.cpp"
TINY = 2e-38  # exponentials that are smaller become 0


class RaceKernel:
    """A compiled library that passed its self-check."""

    def __init__(self, path: Path) -> None:
        team = ctypes.c_uint, POINTER
        self._call = function(path, "slipstream_race", POINTER, POINTER, SIZE, POINTER, *(SIZE,) * 4, POINTER, *team)
        where = POINTER, SIZE, POINTER, SIZE
        self._residual = function(
            path, "slipstream_residual", *(POINTER,) * 2, SIZE, POINTER, *where, *(SIZE,) * 3, POINTER, *team
        )
        self._exponentials = function(path, "slipstream_exponentials", POINTER, *(SIZE,) * 3, POINTER, *team)
        self._truncate = function(path, "slipstream_truncate", POINTER, *(SIZE,) * 3, POINTER, *team)
        self._parallel = parallel()
        self._check()

    def race(self, law: Law, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        if isinstance(law, ResidualLaw) and self._supports(law):
            return self.residual_race(law, key)
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

    def residual_race(self, law: ResidualLaw, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """A race over residual distributions, which the kernel computes."""
        target_probs, scale = law.target_probs.contiguous(), law.scale.contiguous()
        ids, draft_probs = (None, law.draft.dense()) if isinstance(law.draft, Dense) else law.draft.support()
        draft_probs, key = draft_probs.contiguous(), key.contiguous()
        ids = None if ids is None else ids if ids.stride(1) == 1 else ids.contiguous()
        out = torch.empty(len(key), dtype=torch.long)
        where, step = (None, 0) if ids is None else (ids.data_ptr(), ids.stride(0))
        target = target_probs.data_ptr(), target_probs.stride(0), scale.data_ptr()
        draft = where, step, draft_probs.data_ptr(), draft_probs.stride(0), draft_probs.shape[1]
        self._residual(key.data_ptr(), *target, *draft, *target_probs.shape, out.data_ptr(), *self._team)
        return out

    def exponentials(self, scaled: Float[Tensor, "n vocab"]) -> Float[Tensor, "n 1"]:
        """As `core.sampling.exponentials`, for numbers of at most 0. A run of cycles computes the same (`law.hpp`)."""
        total = scaled.new_empty(len(scaled), 1)
        self._exponentials(scaled.data_ptr(), scaled.stride(0), *scaled.shape, total.data_ptr(), *self._team)
        return total

    def truncated(self, probs: Float[Tensor, "n vocab"], params: Sequence[Sampling]) -> Float[Tensor, "n vocab"]:
        """As `core.sampling.truncated`. Changes the given probabilities. A run of cycles computes the same."""
        if (limits := truncations(params)) is not None:
            self._truncate(probs.data_ptr(), probs.stride(0), *probs.shape, address(limits), *self._team)
        return probs

    @staticmethod
    def _supports(law: ResidualLaw) -> bool:
        """Whether the kernel computes this residual with these types."""
        kinds = law.target_probs.dtype, law.scale.dtype, law.draft.support()[1].dtype
        return law.residual is residual and kinds == (torch.float32, torch.float64, torch.float32)

    @property
    def _team(self) -> tuple[int, int]:
        return torch.get_num_threads(), self._parallel

    def _check(self) -> None:
        draws = random.Random(0)  # no torch.Generator, which imports much (`cli/light_torch.py`)
        probs = torch.tensor([draws.random() for _ in range(40 * 300)]).view(40, 300).pow(8)
        probs[:, 7] = 0
        key = torch.tensor([draws.randrange(-(2**62), 2**62) for _ in range(40)])
        law = Dense(probs / probs.sum(-1, keepdim=True))
        scale = torch.tensor([draws.random() for _ in range(40)], dtype=torch.float64)
        left = ResidualLaw(law.probs, scale, OneHot(torch.arange(40), 300))
        for sampled_law in (law, Dense(probs.double()), left):
            if not torch.equal(self.race(sampled_law, key), race(sampled_law, key)):
                raise Unavailable("it is compiled, but its results are wrong")
        scaled = law.probs.log()
        exps = scaled.clone()
        total = self.exponentials(exps)
        if not (torch.allclose(exps, scaled.exp(), 1e-6, TINY) and torch.allclose(total, exps.sum(-1, keepdim=True))):
            raise Unavailable("it is compiled, but its exponentials are wrong")
        params = [Sampling(top_p=draws.random(), min_p=draws.random() / 9) for _ in range(40)]
        expected = sampling.truncated(law.probs, params)
        if not torch.allclose(self.truncated(law.probs.clone(), params), expected, 1e-6, TINY):
            raise Unavailable("it is compiled, but it truncates wrongly")


class KernelNoise(CounterNoise):
    """`CounterNoise` that uses the kernel for laws on the CPU."""

    def race(self, law: Law, key: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        compiled = kernel() if law.device.type == "cpu" else None  # keys always are on the CPU
        return super().race(law, key) if compiled is None else compiled.race(law, key)


def exponentials(scaled: Float[Tensor, "n vocab"]) -> Float[Tensor, "n 1"]:
    """`core.sampling.exponentials`, by the kernel where it can. The numbers are at most 0."""
    suits = scaled.is_cpu and scaled.dtype == torch.float32 and scaled.stride(1) == 1
    compiled = kernel() if suits else None
    return sampling.exponentials(scaled) if compiled is None else compiled.exponentials(scaled)


def truncated(probs: Float[Tensor, "n vocab"], params: Sequence[Sampling]) -> Float[Tensor, "n vocab"]:
    """`core.sampling.truncated`, by the kernel where it can."""
    suits = probs.is_cpu and probs.dtype == torch.float32 and probs.stride(1) == 1
    compiled = kernel() if suits else None
    return sampling.truncated(probs, params) if compiled is None else compiled.truncated(probs, params)


LAW_KERNELS = sampling.LawKernels(exponentials, truncated)


@functools.cache
def kernel() -> RaceKernel | None:
    """The kernel, or None if it is not available."""
    return load_or_none(RaceKernel, SOURCE)
