"""The interface of a trainable drafter: a network, a loss and its guesses. Everything else is shared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.core.registry import Registry
from slipstream.train.corpus import SampleBatch
from slipstream.train.teacher import TeacherOutput


@dataclass(frozen=True, eq=False)
class Guess:
    """The n-th drafted token from every base, given that the drafted tokens before it were right.

    A row whose text is committed up to token s + 1 drafts from base s. Its first drafted token is token s + 2. The
    target's output at position s + 1 is the distribution of that token.
    """

    right: Bool[Tensor, "rows length"]  # whether the most probable token is that of the answer
    log_prob: Float[Tensor, "rows length"]  # the drafter's log-probability of the answer's token
    position: Int[Tensor, "rows length"]  # whose distribution is predicted; -1 if there is none


class Method(ABC):
    """A training method for one teacher. `net` holds the trained weights and nothing else."""

    name: ClassVar[str]
    options: ClassVar[type]
    defaults: ClassVar[dict[str, Any]] = {}  # of the options of every method, where the method needs other ones
    drafts_in_prefill: ClassVar[bool]  # can draft in the pass that reads the prompt
    joint: ClassVar[bool] = True  # whether its loss can train the target, too
    can_add: ClassVar[tuple[str, ...]] = ()  # options whose part a drafter to start from may lack
    overlap: float = 0.0  # share of the loss that is -log of the probability of acceptance
    net: nn.Module
    layers: tuple[int, ...]  # of the teacher, whose hidden states the method reads
    ids: Int[Tensor, " draft_vocab"]  # tokens that can be drafted

    def prepare(self, output: TeacherOutput, supervised: Bool[Tensor, "rows length"]) -> None:
        """Initialise from the teacher's output on a first batch, before training begins."""

    def follow_target(self) -> None:
        """Take the target's output rows again, if the network has a copy. Joint training calls it before every step."""

    @abstractmethod
    def loss(self, batch: SampleBatch, output: TeacherOutput) -> Tensor:
        """The value that training minimises. A network without parameters learns from the batch in this call."""

    @abstractmethod
    def guesses(self, batch: SampleBatch, output: TeacherOutput, depth: int) -> list[Guess]:
        """One for each of `depth` drafted tokens."""

    @abstractmethod
    def save(self, folder: Path, about: dict[str, Any], precision: str) -> None:
        """Write the folder that `-d FOLDER` loads."""

    @property
    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """The sizes of the network, as the folder's configuration names them."""

    @property
    @abstractmethod
    def weights_read(self) -> int:
        """Parameters read for one drafted token, the output rows of the draft vocabulary included."""


methods: Registry[Method] = Registry(
    "method",
    {
        "eagle": "slipstream.train.methods.eagle:EagleMethod",
        "dflash": "slipstream.train.methods.dflash:DflashMethod",
        "draft_model": "slipstream.train.methods.draft_model:DraftModelMethod",
        "early_exit": "slipstream.train.methods.early_exit:EarlyExitMethod",
        "layer_skip": "slipstream.train.methods.layer_skip:LayerSkipMethod",
        "medusa": "slipstream.train.methods.heads:MedusaMethod",
        "mlp": "slipstream.train.methods.heads:MlpMethod",
        "prophet": "slipstream.train.methods.heads:ProphetMethod",
    },
)
