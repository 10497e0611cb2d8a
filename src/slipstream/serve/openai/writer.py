"""What writes the samples of a request: one writer for each form of answer."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from slipstream.engines.base import Chunk, Completion

ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Writer(ABC):
    """Writes an answer whole, or the parts of a stream. A part may be empty."""

    n: int = 1  # samples of each prompt
    media_type = "text/event-stream"
    first_chunk: float = 0.0  # when it came, by the clock of `time.perf_counter`

    @abstractmethod
    def whole(self, samples: Sequence[Completion], pieces: Sequence[Sequence[str]]) -> dict[str, Any]:
        """All samples. `pieces` are the texts of their tokens."""

    @abstractmethod
    def begin(self) -> str:
        """The part before the first cycle."""

    @abstractmethod
    def cycle(self, index: int, chunk: Chunk) -> str:
        """The part of one cycle of one sample."""

    @abstractmethod
    def end(self, samples: Sequence[Completion]) -> str:
        """The part after the last cycle."""

    @abstractmethod
    def failure(self, status: int, message: str) -> str:
        """The part in place of the rest, where something went wrong."""


def data_line(event: dict[str, Any]) -> str:
    return f"data: {ENCODER.encode(event)}\n\n"
