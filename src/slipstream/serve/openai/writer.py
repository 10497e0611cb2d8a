"""What writes the samples of a request: one writer for each form of answer."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from slipstream.engines.base import Chunk, Completion

ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Writer(ABC):
    """Writes an answer whole, or as the lines of server-sent events."""

    n: int = 1  # samples of each prompt

    @abstractmethod
    def whole(self, samples: Sequence[Completion], pieces: Sequence[Sequence[str]]) -> dict[str, Any]:
        """All samples. `pieces` are the texts of their tokens."""

    @abstractmethod
    def begin(self) -> Iterator[str]:
        """Events before the first cycle."""

    @abstractmethod
    def cycle(self, index: int, chunk: Chunk) -> Iterator[str]:
        """Events of one cycle of one sample."""

    @abstractmethod
    def end(self, samples: Sequence[Completion]) -> Iterator[str]:
        """Events after the last cycle."""

    @abstractmethod
    def failure(self, status: int, message: str) -> Iterator[str]:
        """Events in place of the rest, where something went wrong."""


def data_line(event: dict[str, Any]) -> str:
    return f"data: {ENCODER.encode(event)}\n\n"
