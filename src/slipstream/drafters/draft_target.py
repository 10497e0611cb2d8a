"""A draft model as a target: a drafter in front of it drafts for it (`staged`)."""

from __future__ import annotations

from typing import Any

from slipstream.core.interfaces import TargetModel
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.load import ModelFiles
from slipstream.models.target import TorchTarget


class DraftTarget(TorchTarget):
    """The draft model `model` of `target`. Token ids and tokenizer are those of `target`.

    `files`: where the draft model is stored; None for a distilled one, which is stored in part."""

    def __init__(self, model: TorchModel, target: TargetModel, files: ModelFiles | None) -> None:
        super().__init__(model, target.trust_remote_code)
        self._target, self._files = target, files

    @property
    def vocab(self) -> int:
        return self._target.vocab

    @property
    def text(self) -> Any:
        return self._target.text

    @property
    def files(self) -> ModelFiles:
        if self._files is None:
            raise ValueError("no drafter is shipped for a distilled draft model; name one in the stage before it")
        return self._files
