"""Early exit: drafts with the target's first layers and a head.

The target keeps the outputs and the keys and values of these layers while a draft grows (`TorchModel.peek`), and the
score pass resumes after them. So in a chain no layer runs twice for a token.

- Without training, the head is the target's own final norm and output matrix. This pays for targets whose first layers
  were trained to predict tokens (LayerSkip). Other targets need so many layers for a good draft that drafting costs
  nearly as much as decoding.
- A trained head (`exit_head`) is one transformer block more, and the output rows of a draft vocabulary. It reads the
  stored states of the committed text, so it drafts from the second pass of a request on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from slipstream.core.interfaces import Drafter, Needs, TargetModel
from slipstream.core.law import Law
from slipstream.core.noise import Noise
from slipstream.core.shaping import law_at, places
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.device.interface import DeviceDrafter
from slipstream.drafters.exit_head.head import KIND, ExitHead
from slipstream.drafters.files.shipped import shipped, shipped_for
from slipstream.drafters.levels.grow import grow
from slipstream.drafters.levels.slot_states import slot_states
from slipstream.drafters.temperature import DraftTemperature
from slipstream.models.run.torch_model import TorchModel


@dataclass(frozen=True)
class EarlyExitOptions(DraftTemperature):
    """The options of `early_exit`."""

    layer: int | None = None  # how many of the target's layers draft; default: those of the head, else seven eighths
    model: str | None = None  # the folder of a trained head; default: the shipped one, unless a layer is named


class EarlyExit(Drafter):
    """`layers`: how many of the target's layers draft. `head`: a trained head; None: the target's own output."""

    options_type = EarlyExitOptions
    draft_temperature: float | None = None

    def __init__(self, target: TorchModel, layers: int, head: ExitHead | None = None) -> None:
        if not 1 <= layers < target.layers:
            raise ValueError(
                f"layer is {layers}; the target has {target.layers} layers, so it must be 1 to {target.layers - 1}"
            )
        self._target, self.layers, self.head = target, layers, head
        if head is not None:
            self.needs = Needs((layers - 1,))

    @classmethod
    def build(cls, target: TargetModel, options: EarlyExitOptions) -> EarlyExit:
        model = target.model
        if not isinstance(model, TorchModel):
            raise ValueError("early_exit runs the target's own layers, so it needs the native engine")
        drafter = cls._load(target, model, options)
        drafter.draft_temperature = options.draft_temperature
        return drafter

    @classmethod
    def _load(cls, target: TargetModel, model: TorchModel, options: EarlyExitOptions) -> EarlyExit:
        folder = _head_folder(target, options)
        if folder is None:
            return cls(model, max(1, 7 * model.layers // 8) if options.layer is None else options.layer)
        head = ExitHead.load(folder, target)
        layers = head.net.config.layer
        if options.layer not in (None, layers):
            raise ValueError(f"layer is {options.layer}, and the head in {folder} was trained for layer {layers}")
        return cls(model, layers, head)

    def close(self, rows: Sequence[Row]) -> None:
        if self.head is not None:
            for row in rows:
                self.head.forget(row)

    def device_form(self, target: Any) -> DeviceDrafter | None:
        """Captured cycles draft at the temperature of each request."""
        if self.draft_temperature is not None:
            return None
        from slipstream.drafters.exit_head.device import ExitDeviceDrafter

        return ExitDeviceDrafter(self, target, target.decoder)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        ranking = any(row_budget.shape and row_budget.siblings is Siblings.CHOSEN for row_budget in budget)
        if self.head is not None:
            budget = [
                row_budget if self.head.is_ready(row) else replace(row_budget, depth=0)
                for row, row_budget in zip(rows, budget, strict=True)
            ]
        draft = None if self.head is None else self.head.draft(rows)

        def next_law(tree: Tree, token: torch.Tensor, slots: list[int]) -> Law:
            slot_places = places(rows, tree, token.tolist())
            where = [slot_places[slot] for slot in slots]
            states = slot_states(self._target, rows, tree, token, slots, self.layers)
            if self.head is None or draft is None:
                return law_at(self._target.logits(states), where, ranking, self.draft_temperature)
            logits = draft.logits(tree, slots, states)
            return self.head.vocabulary.law_at(logits, where, ranking, self.draft_temperature)

        return grow(rows, budget, noise, next_law, self._target.vocab)


def _head_folder(target: TargetModel, options: EarlyExitOptions) -> Path | None:
    """The folder of a trained head; None if the target's own output is used."""
    if options.model is not None:
        return shipped().get(options.model, Path(options.model).expanduser())
    if options.layer is not None:
        return None
    try:
        files = target.files
    except ValueError:  # a model that was made in memory
        return None
    return shipped_for(KIND, files.name, files.sha256)
