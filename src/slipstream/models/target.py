"""The target of a run: a model with its files and its tokenizer, as drafters see it (`core.interfaces.TargetModel`)."""

from __future__ import annotations

from functools import cached_property

from slipstream.core.array_types import Float, Tensor
from slipstream.core.interfaces import TargetModel
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.load import ModelFiles
from slipstream.models.speech.codec import SpeechCodec
from slipstream.models.text.codec import TextCodec
from slipstream.models.weights.linears import products


class TorchTarget(TargetModel):
    """The part of the target interface that follows from the running model alone."""

    def __init__(self, model: TorchModel, trust_remote_code: bool = False) -> None:
        self._model, self.trust_remote_code = model, trust_remote_code

    @property
    def model(self) -> TorchModel:
        return self._model

    @property
    def vocab(self) -> int:
        return self._model.vocab

    @property
    def features(self) -> TorchModel:
        return self._model

    @property
    def embedding(self) -> Float[Tensor, "vocab hidden"]:
        weight: Tensor = self._model.model.get_input_embeddings().weight.detach()
        return weight

    @property
    def output(self) -> Float[Tensor, "vocab hidden"]:
        weight: Tensor = self._model.model.get_output_embeddings().weight.detach()
        return weight


class Target(TorchTarget):
    """A loaded target with its files, its tokenizer and a label for outputs.

    `weights`: the type that the weights were rounded to, if they were. `trust_remote_code`: Python code from the
    repositories of draft models may run, too."""

    def __init__(
        self,
        files: ModelFiles,
        model: TorchModel,
        text: TextCodec,
        weights: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        super().__init__(model, trust_remote_code)
        self._files, self._text, self.weights = files, text, weights

    @property
    def files(self) -> ModelFiles:
        return self._files

    @property
    def text(self) -> TextCodec:
        return self._text

    @cached_property
    def speech(self) -> SpeechCodec | None:
        """Prompts and features of a speech model; None for a text model."""
        return SpeechCodec(self.files.path, self.text, str(self.model.device)) if self.files.speech else None

    @cached_property  # every request asks for it, and it looks through all layers
    def label(self) -> str:
        integers = products(self.model.model)
        dtype = integers or str(self.model.dtype).removeprefix("torch.")
        weights = self.files.weights(exact=integers is not None)
        weights += f"rounded to {self.weights}, " if self.weights else ""
        return f"{self.files.name} ({weights}{dtype}{', invariant' if self.model.invariant else ''})"
