"""Seeds torch's global generators during a call of transformers, which samples from them.

All other code sees its own generator states, also code that runs when a row's last chunk is published, before the call
returns."""

from __future__ import annotations

from types import TracebackType

import torch

States = tuple[torch.Tensor, list[torch.Tensor]]


class SeededGenerators:
    """torch's global generators: seeded while transformers samples, and in the caller's state at all other times."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._other: States | None = None  # the caller's states while sampling, the call's while paused
        self._paused = False

    def __enter__(self) -> SeededGenerators:
        self._other = _states()
        torch.manual_seed(self._seed)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.pause()

    def pause(self) -> None:
        if not self._paused:
            self._swap()

    def resume(self) -> None:
        if self._paused:
            self._swap()

    def _swap(self) -> None:
        assert self._other is not None, "entered first"
        now = _states()
        cpu, devices = self._other
        torch.set_rng_state(cpu)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        self._other, self._paused = now, not self._paused


def _states() -> States:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
