"""The options of `slipstream train`, with their defaults and one line of help each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


def _option(default: Any, text: str, shown: str = "") -> Any:
    """A field with a line of help; `shown` describes the default where its value does not."""
    return field(default=default, metadata={"help": text, "default": shown or str(default)})


@dataclass(frozen=True)
class CommonOptions:
    """Options of every method."""

    steps: int = _option(4000, "gradient steps")
    tokens: int = _option(16384, "tokens of a batch")
    rate: float = _option(1e-3, "peak learning rate")
    vocab: int = _option(8192, "size of the draft vocabulary: the tokens that the target emits most often")
    answer: int = _option(192, "most tokens of an answer")
    prompt: int = _option(448, "most tokens of a prompt; longer prompts are left out")
    temperatures: str = _option("0,1", "every prompt is answered once at each of these temperatures")
    rows: int = _option(0, "prompts answered in one batch", "8192 on a GPU, 16 on a CPU")
    seed: int = _option(0, "seed of the answers, the first weights and the order of the batches")
    precision: str = _option("int8", "type of the stored weights: int8, int6 or bf16")
    overlap: float = _option(
        0.0, "share of the loss that is -log of the probability of acceptance; the rest is cross-entropy"
    )
    start: str = _option(
        "", "trained drafter to start from: a folder, a shipped drafter or the method's name", "new weights"
    )
    joint: int = _option(0, "1: train the target, too, on the answers in the data")
    target_rate: float = _option(1e-5, "peak learning rate of the target, if joint is 1")
    answers: str = _option(
        "",
        "where the answers are stored: the folder of another training, or a new one to share",
        "in the output folder",
    )

    def __post_init__(self) -> None:
        for name in ("steps", "tokens", "vocab", "answer", "prompt"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("rows", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        for name in ("rate", "target_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap is {self.overlap}; it must be between 0 and 1")
        if self.joint not in (0, 1):
            raise ValueError(f"joint is {self.joint}; it must be 0 or 1")
        if self.joint and self.answers:
            raise ValueError("joint is 1, and the answers of a target that changes cannot be shared; leave answers out")
        if self.precision not in ("int8", "int6", "bf16"):
            raise ValueError(f"precision is {self.precision!r}; it must be int8, int6 or bf16")
        _ = self.temperature_list

    @property
    def temperature_list(self) -> list[float]:
        try:
            values = [float(part) for part in self.temperatures.split(",")]
        except ValueError as error:
            raise ValueError(f"temperatures is {self.temperatures!r}; write numbers such as 0,1") from error
        if not all(0 <= value < float("inf") for value in values):
            raise ValueError(f"temperatures is {self.temperatures!r}; each must be 0 or more")
        return values


@dataclass(frozen=True)
class EagleTrainOptions:
    """Options of the method `eagle`."""

    features: str = _option(
        "", "layers of the target whose hidden states the head reads, such as 3,16,29", "a low, a middle and the last"
    )
    intermediate: int = _option(0, "width of the feed-forward part", "the target's")
    unroll: int = _option(5, "steps that the head is rolled out on its own states")
    decay: float = _option(0.8, "step j of the roll-out has the weight decay^j in the loss")

    def __post_init__(self) -> None:
        if self.intermediate < 0:
            raise ValueError(f"intermediate is {self.intermediate}; it must be 1 or more, or 0 for the target's")
        if self.unroll < 1:
            raise ValueError(f"unroll is {self.unroll}; it must be 1 or more")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay is {self.decay}; it must be above 0 and at most 1")


@dataclass(frozen=True)
class DflashTrainOptions:
    """Options of the method `dflash`."""

    features: str = _option(
        "", "layers of the target whose hidden states are fused, such as 2,11,20,29", "four from a low one to the last"
    )
    layers: int = _option(3, "layers of the stack")
    intermediate: int = _option(0, "width of the feed-forward parts", "the width of the target's hidden states")
    kv_heads: int = _option(0, "heads of keys and values", "the target's")
    block: int = _option(8, "tokens drafted in one pass")
    layout: str = _option(
        "joined", "joined, or masked: the layout of published checkpoints, which `models convert` writes for vLLM"
    )
    mask_token: int = _option(-1, "the token that stands for unknown ones in the layout masked", "the last one")
    markov: int = _option(0, "width of the Markov head, by which a token depends on the one before it; 0: none")
    anchors: int = _option(96, "blocks of an answer in one step, at random positions")
    gamma: float = _option(4.0, "the n-th token of a block has the weight exp(-(n - 1) / gamma) in the loss")
    focus: float = _option(0.5, "share of a weight that is multiplied with the probability of the tokens before it")

    def __post_init__(self) -> None:
        for name in ("layers", "block", "anchors"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("intermediate", "kv_heads", "markov"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more, or 0 for the default")
        if self.layout not in ("joined", "masked"):
            raise ValueError(f"layout is {self.layout!r}; it must be joined or masked")
        if self.mask_token < -1:
            raise ValueError(f"mask_token is {self.mask_token}; it must be a token, or -1 for the default")
        if not 0 < self.gamma < float("inf"):
            raise ValueError(f"gamma is {self.gamma}; it must be above 0")
        if not 0 <= self.focus <= 1:
            raise ValueError(f"focus is {self.focus}; it must be between 0 and 1")


@dataclass(frozen=True)
class EarlyExitTrainOptions:
    """Options of the method `early_exit`."""

    layer: int = _option(0, "layers of the target that run before the head", "a third of them")
    intermediate: int = _option(0, "width of the feed-forward part", "the target's")
    window: int = _option(64, "positions that the block attends to")

    def __post_init__(self) -> None:
        for name in ("layer", "intermediate"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more, or 0 for the default")
        if self.window < 1:
            raise ValueError(f"window is {self.window}; it must be 1 or more")


@dataclass(frozen=True)
class LayerSkipTrainOptions:
    """Options of the method `layer_skip`. It has other defaults: steps=150, tokens=1024, answer=64, temperatures=0."""

    share: float = _option(0.2, "share of the weights of all layers that is skipped")
    search_seed: int = _option(0, "seed of the sets that are tried")

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share is {self.share}; it must be above 0 and below 1")
        if self.search_seed < 0:
            raise ValueError(f"search_seed is {self.search_seed}; it must be 0 or more")


@dataclass(frozen=True)
class DraftModelTrainOptions:
    """Options of the method `draft_model`."""

    layers: str = _option("", "layers of the target that are kept, such as 0,1,28,29", "the first two and the last two")


SEES_TOKENS = "width of the part by which heads see the tokens drafted before them; 0: none"


@dataclass(frozen=True)
class HeadsTrainOptions:
    """Options of the methods `medusa`, `mlp` and `prophet`."""

    features: str = _option("", "layers of the target whose hidden states are read, such as 3,16,29", "the last")
    heads: int = _option(5, "heads: the most tokens of a draft")
    decay: float = _option(0.8, "head j has the weight decay^j in the loss")
    focus: float = _option(0.5, "share of a weight that is multiplied with the probability of the tokens before it")

    def __post_init__(self) -> None:
        for option in fields(self):
            least = 0 if option.name == "recurrent" else 1
            if option.type == "int" and getattr(self, option.name) < least:
                raise ValueError(f"{option.name} is {getattr(self, option.name)}; it must be {least} or more")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay is {self.decay}; it must be above 0 and at most 1")
        if not 0 <= self.focus <= 1:
            raise ValueError(f"focus is {self.focus}; it must be between 0 and 1")


@dataclass(frozen=True)
class MedusaTrainOptions(HeadsTrainOptions):
    """Options of the method `medusa`."""

    blocks: int = _option(2, "residual blocks of a head")
    recurrent: int = _option(0, SEES_TOKENS)


@dataclass(frozen=True)
class MlpTrainOptions(HeadsTrainOptions):
    """Options of the method `mlp`."""

    inner: int = _option(1024, "width of the state")


@dataclass(frozen=True)
class ProphetTrainOptions(HeadsTrainOptions):
    """Options of the method `prophet`."""

    projection: str = _option("transformer", "transformer, or linear: one matrix for each head, the plain baseline")
    window: int = _option(16, "positions that the transformer layer attends to")
    intermediate: int = _option(512, "width of its feed-forward part")
    recurrent: int = _option(0, SEES_TOKENS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.projection not in ("transformer", "linear"):
            raise ValueError(f"projection is {self.projection!r}; it must be transformer or linear")
        if self.projection == "linear" and self.recurrent:
            raise ValueError("heads of projection=linear see no drafted tokens; leave recurrent out")


GROUPS: dict[str, type] = {
    "every method": CommonOptions,
    "eagle": EagleTrainOptions,
    "dflash": DflashTrainOptions,
    "draft_model": DraftModelTrainOptions,
    "early_exit": EarlyExitTrainOptions,
    "layer_skip": LayerSkipTrainOptions,
    "medusa, mlp and prophet": HeadsTrainOptions,
    "medusa": MedusaTrainOptions,
    "mlp": MlpTrainOptions,
    "prophet": ProphetTrainOptions,
}


def describe(kind: type) -> Iterator[tuple[str, str, str]]:
    """Name, help and default of every option that a class adds to those of its base."""
    inherited = {option.name for base in kind.__bases__ if is_dataclass(base) for option in fields(base)}
    for option in fields(kind):
        if option.name not in inherited:
            yield option.name, option.metadata["help"], option.metadata["default"]
