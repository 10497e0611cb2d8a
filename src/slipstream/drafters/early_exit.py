"""Early exit: drafts with the target's first layers, its own final norm and its output matrix.

The target keeps the outputs and the keys and values of these layers while a draft grows (`TorchModel.peek`), and the
score pass resumes after them. So in a chain no layer runs twice for a token. Nothing is trained. It pays for targets
whose first layers were trained to predict tokens (LayerSkip). Other targets need so many layers for a good draft that
drafting costs nearly as much as decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.core.interfaces import Drafter, TargetModel
from slipstream.core.law import Law
from slipstream.core.noise import Noise
from slipstream.core.shaping import law_at, places
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.grow import grow
from slipstream.drafters.own_layers import slot_states
from slipstream.models.run.torch_model import TorchModel


@dataclass(frozen=True)
class EarlyExitOptions:
    """The options of `early_exit`."""

    layer: int | None = None  # how many of the target's layers draft; default: seven eighths of them


class EarlyExit(Drafter):
    """`layers`: how many of the target's layers draft."""

    options_type = EarlyExitOptions

    def __init__(self, target: TorchModel, layers: int) -> None:
        if not 1 <= layers < target.layers:
            raise ValueError(
                f"layer is {layers}; the target has {target.layers} layers, so it must be 1 to {target.layers - 1}"
            )
        self._target, self.layers = target, layers

    @classmethod
    def build(cls, target: TargetModel, options: EarlyExitOptions) -> EarlyExit:
        model = target.model
        if not isinstance(model, TorchModel):
            raise ValueError("early_exit runs the target's own layers, so it needs the native engine")
        return cls(model, max(1, 7 * model.layers // 8) if options.layer is None else options.layer)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        ranking = any(row_budget.shape and row_budget.siblings is Siblings.CHOSEN for row_budget in budget)

        def next_law(tree: Tree, token: torch.Tensor, slots: list[int]) -> Law:
            slot_places = places(rows, tree, token.tolist())
            logits = self._target.logits(slot_states(self._target, rows, tree, token, slots, self.layers))
            return law_at(logits, [slot_places[slot] for slot in slots], ranking)

        return grow(rows, budget, noise, next_law, self._target.vocab)
