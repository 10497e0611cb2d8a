"""What a way of drafting must offer to be trained: a network, a loss, and its guesses. The rest is the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.core.registry import Registry
from slipstream.train.corpus import Batch
from slipstream.train.teacher import Lesson


@dataclass(frozen=True, eq=False)
class Guess:
    """The n-th drafted token from every base on, had those before it been drafted right. A row whose text is committed
    up to token s + 1 drafts from base s: its first drafted token is token s + 2, whose law stands at position s + 1."""

    right: Bool[Tensor, "rows length"]  # the likeliest token is the one that came
    said: Float[Tensor, "rows length"]  # log probability given to the token that came
    place: Int[Tensor, "rows length"]  # the position whose law was guessed; -1 where there is none


class Method(ABC):
    """Built for one teacher; `net` holds what is trained and nothing else."""

    name: ClassVar[str]
    early: ClassVar[bool]  # drafts in the pass that reads the prompt, too
    net: nn.Module
    layers: tuple[int, ...]  # of the teacher, whose hidden states a lesson must hold
    ids: Int[Tensor, " draft_vocab"]  # tokens that can be drafted

    def prepare(self, lesson: Lesson, supervised: Bool[Tensor, "rows length"]) -> None:
        """See a first lesson before training begins."""

    @abstractmethod
    def loss(self, batch: Batch, lesson: Lesson) -> Tensor:
        """To be made small."""

    @abstractmethod
    def guesses(self, batch: Batch, lesson: Lesson, depth: int) -> list[Guess]:
        """One for each drafted position."""

    @abstractmethod
    def save(self, folder: Path, about: dict[str, Any], precision: str) -> None:
        """Write what `-d FOLDER` loads."""

    @property
    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """What the network is, as the configuration of its folder tells it."""

    @property
    @abstractmethod
    def read(self) -> int:
        """Parameters read for one drafted token, the output rows of the draft vocabulary included."""


methods: Registry[Method] = Registry(
    "method",
    {
        "eagle": "slipstream.train.eagle:Eagle",
        "draft_model": "slipstream.train.distill:Distill",
    },
)
