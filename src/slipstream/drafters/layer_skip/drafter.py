"""Draft & Verify: drafts with the target's own weights, without some attention and MLP blocks (arXiv 2309.08168).

Drafting reads the target's KV cache of the committed text. The keys and values of a draft are written behind it, and
the score pass overwrites them. There is no second copy of the weights.

A draft ends where the drafter is unsure: the largest probability of a law is below a threshold. The token of that law
is still drafted, because its law was computed anyway, and nothing is drafted after it. The decision uses the law only,
not the drawn token, so the output stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.core.interfaces import Drafter, TargetModel
from slipstream.core.law import Law, Sparse, concat
from slipstream.core.noise import Noise
from slipstream.core.shaping import Place, law_at, places
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row, Scores, Verdict
from slipstream.drafters.layer_skip.skip_set import checked, find_skip_set
from slipstream.drafters.layer_skip.threshold import Threshold
from slipstream.drafters.levels.grow import NextLaw, grow
from slipstream.drafters.levels.slot_states import slot_states
from slipstream.drafters.temperature import DraftTemperature
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.models.run.torch_model import TorchModel


@dataclass(frozen=True)
class LayerSkipOptions(DraftTemperature):
    """The options of `layer_skip`."""

    skip: str | None = None  # a trained folder, or blocks such as a4-9,m12; default: the shipped set, else a fixed one
    model: str | None = None  # a trained folder: what -d FOLDER sets
    threshold: float = 0.6  # confidence below which a draft ends, at the start of a request; 0: drafts never end early

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is {self.threshold}; it must be between 0 and 1")


class LayerSkip(Drafter):
    """`skipped`: the blocks that do not run. `threshold`: where the confidence threshold of a row starts."""

    options_type = LayerSkipOptions
    draft_temperature: float | None = None

    def __init__(self, target: TorchModel, skipped: SkippedBlocks, threshold: float = 0.0) -> None:
        if target.invariant and target.device.type == "cuda":
            raise ValueError("layer_skip has no kernels for invariant mode on a GPU; use another drafter")
        self._target, self.skipped, self._start = target, checked(skipped, target.layers), threshold
        self._thresholds: dict[Row, Threshold] = {}
        self._depths: dict[Row, int] = {}  # of the last proposed draft

    @classmethod
    def build(cls, target: TargetModel, options: LayerSkipOptions) -> LayerSkip:
        model = target.model
        if not isinstance(model, TorchModel):
            raise ValueError("layer_skip runs the target's own layers, so it needs the native engine")
        skipped = find_skip_set(target, model.layers, options.skip or options.model)
        drafter = cls(model, skipped, options.threshold)
        drafter.draft_temperature = options.draft_temperature
        return drafter

    def open(self, rows: Sequence[Row]) -> None:
        self._thresholds |= {row: Threshold(self._start) for row in rows}

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            del self._thresholds[row]
            self._depths.pop(row, None)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        ready = [
            row_budget if self._is_ready(row) else replace(row_budget, depth=0)
            for row, row_budget in zip(rows, budget, strict=True)
        ]
        ranking = any(row_budget.shape and row_budget.siblings is Siblings.CHOSEN for row_budget in budget)
        draft = grow(rows, ready, noise, self._next_law(rows, ranking), self._target.vocab)
        depths = dict.fromkeys(range(len(rows)), 0)
        for (r, _), depth in zip(draft.tree.lists, draft.tree.depth.tolist(), strict=True):
            depths[r] = max(depths[r], depth + 1)
        self._depths |= {rows[r]: depth for r, depth in depths.items()}
        return draft

    def _is_ready(self, row: Row) -> bool:
        """Whether the target has read all tokens of a row but the last. A draft does not read prompts."""
        return self._target.cached(row) >= row.length - 1

    def _next_law(self, rows: Sequence[Row], ranking: bool) -> NextLaw:
        """The laws of a growing draft. A token from an unsure law is not followed by another one."""
        thresholds = [self._thresholds[row].value for row in rows]
        sure: set[int] = set()  # slots after which the law was sure

        def next_law(tree: Tree, token: Int[Tensor, " nodes"], slots: list[int]) -> Law:
            origin = tree.origin.tolist()
            active = [n for n, slot in enumerate(slots) if slot < tree.rows or origin[slot - tree.rows] in sure]
            if not active:
                return _impossible(len(slots), self._target.vocab)
            running = [slots[n] for n in active]
            slot_places = places(rows, tree, token.tolist())
            where = [slot_places[slot] for slot in running]
            states = slot_states(self._target, rows, tree, token, running, self._target.layers, self.skipped)
            logits = self._target.logits(states)
            law = law_at(logits, where, ranking, self.draft_temperature)
            owner = tree.slot_row.tolist()
            confidence = _confidence(logits, law, where, ranking)
            sure.update(
                slot for slot, chance in zip(running, confidence, strict=True) if chance >= thresholds[owner[slot]]
            )
            return _spread(law, active, len(slots))

        return next_law

    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        for row, accepted in zip(rows, verdict.accepted.tolist(), strict=True):
            self._thresholds[row].update(accepted, self._depths.pop(row, 0))


def _confidence(logits: Tensor, law: Law, where: Sequence[Place], ranking: bool) -> list[float]:
    """The largest probability of each law; of the law at temperature 1 where the request is greedy."""
    greedy = any(row.request.sampling.temperature == 0 for row, _ in where)
    if greedy and not ranking:
        law = law_at(logits, where, ranking=True)
    chances: list[float] = law.support()[1].amax(-1).tolist()
    return chances


def _impossible(count: int, vocab: int, device: torch.device | None = None) -> Law:
    """Laws that allow no token: a draft ends there."""
    return Sparse(torch.zeros(count, 1, dtype=torch.long, device=device), torch.zeros(count, 1, device=device), vocab)


def _spread(law: Law, index: Sequence[int], count: int) -> Law:
    """`count` laws: the given ones at `index`, and laws that allow no token elsewhere."""
    if len(index) == count:
        return law
    order = [len(index)] * count
    for n, i in enumerate(index):
        order[i] = n
    return concat([law, _impossible(1, law.vocab, law.device)]).select(torch.tensor(order, device=law.device))
