"""Drafting with a smaller model, token by token under the request's own sampling parameters.

Its cache follows the verdicts: what was accepted stays, the rest is forgotten, and whatever the row committed meanwhile
(a recovered token, plain steps, another drafter's turn) is read with the next step. Vocabularies may differ by padding:
ids only the draft knows get no probability, ids only the target knows are never drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.interfaces import Drafter, TargetModel
from slipstream.core.law import Law, OneHot
from slipstream.core.noise import Noise
from slipstream.core.shaping import Place, law_at, places
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row, Scores, Verdict
from slipstream.drafters.device.interface import DeviceDrafter
from slipstream.drafters.draft_loading import DraftModelOptions, load_draft_model
from slipstream.drafters.grow import grow, locate
from slipstream.drafters.vocabulary import DraftVocabulary
from slipstream.models.run.torch_model import TorchModel


@dataclass(frozen=True, eq=False)
class Proposal:
    """What `observe` must know of a draft that was proposed."""

    run: Draft  # what the draft model has run of it
    number: Int[Tensor, " nodes"]  # where each node of the draft stands in `run`, -1 for one that was never run


class DraftModel(Drafter):
    """`vocab` is the target's; `ids` are the tokens the model gives logits for, where these are not the first ones."""

    options_type = DraftModelOptions

    def __init__(self, model: TorchModel, vocab: int, ids: Int[Tensor, " draft_vocab"] | None = None) -> None:
        self.model, self.vocab = model, vocab
        self._words = None if ids is None else DraftVocabulary(ids, vocab)
        # the latest one of each row: in one cycle, rows under another rule have a proposal of their own
        self._proposals: dict[Row, Proposal] = {}

    @classmethod
    def build(cls, target: TargetModel, options: DraftModelOptions) -> DraftModel:
        model, ids = load_draft_model(target, options)
        return cls(model, target.vocab, ids)

    @property
    def own_model(self) -> TorchModel:
        return self.model

    @property
    def ids(self) -> Int[Tensor, " draft_vocab"] | None:
        """The tokens it gives logits for, where these are not the first ones."""
        return None if self._words is None else self._words.ids

    def open(self, rows: Sequence[Row]) -> None:
        self.model.open(rows)

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._proposals.pop(row, None)
        self.model.close(rows)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        room = [
            min(spend.depth, max(0, self.model.context - row.length)) for spend, row in zip(budget, rows, strict=True)
        ]
        budget = [replace(spend, depth=depth) for depth, spend in zip(room, budget, strict=True)]
        ranking = any(spend.shape and spend.siblings is Siblings.CHOSEN for spend in budget)
        run = self._chosen(Tree.chains([0] * len(rows)), torch.zeros(0, dtype=torch.long))

        def next_law(tree: Tree, token: Tensor, slots: list[int]) -> Law:
            nonlocal run
            run = self._chosen(tree, token)
            everywhere = places(rows, tree, token.tolist())
            states = self._states(rows, run, slots)
            return self._law(self.model.logits(states), [everywhere[slot] for slot in slots], ranking)

        draft = grow(rows, budget, noise, next_law, self.vocab)
        number = torch.tensor(locate(draft, run.tree, run.token), dtype=torch.long)
        self._proposals |= dict.fromkeys(rows, Proposal(run, number))
        return draft

    def _states(self, rows: Sequence[Row], run: Draft, slots: Sequence[int]) -> Float[Tensor, "slots hidden"]:
        """The draft model's last hidden state at these slots; only what is new is read, and only of rows that go on."""
        owner = run.tree.slot_row.tolist()
        active = sorted({owner[slot] for slot in slots})
        tree, kept = run.tree.select(active)
        states = self.model.peek([rows[r] for r in active], self._chosen(tree, run.token[kept]), self.model.layers)
        place = {slot: n for n, slot in enumerate([*active, *(run.tree.rows + i for i in kept)])}
        return states[[place[slot] for slot in slots]]

    def _chosen(self, tree: Tree, token: Int[Tensor, " nodes"]) -> Draft:
        return Draft(tree, token, OneHot(token, self.vocab))

    def _law(self, logits: Float[Tensor, "n draft_vocab"], where: Sequence[Place], ranking: bool) -> Law:
        if self._words is not None:
            return self._words.law_at(logits, where, ranking)
        return law_at(self._fit(logits), where, ranking)

    def _fit(self, logits: Float[Tensor, "n draft_vocab"]) -> Float[Tensor, "n vocab"]:
        """Cut or pad to the target's vocabulary."""
        missing = self.vocab - logits.shape[1]
        if missing <= 0:
            return logits[:, : self.vocab]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)

    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        """`rows` are those of one proposal, in its order."""
        proposal = self._proposals[rows[0]]
        number = torch.cat([proposal.number, proposal.number.new_full((1,), -1)]).to(verdict.path.device)
        self.model.commit(rows, replace(verdict, path=number[verdict.path]), proposal.run)

    def device_form(self, target: Any) -> DeviceDrafter | None:
        """A draft model drafts on the device where its own passes can be captured."""
        try:
            from slipstream.drafters.device.draft_model import DraftModelDevice
            from slipstream.models.run.gpu.passes import GpuPasses
        except ImportError:  # Triton is not installed
            return None
        passes = self.model.decoder
        return DraftModelDevice(self, passes) if isinstance(passes, GpuPasses) else None

    def stepped(self, rows: Sequence[Row], depths: Sequence[int], kept: Sequence[Sequence[int]]) -> None:
        """Someone else ran the model over the committed ends of rows that draft, and over all that was drafted in them
        but the last of so many tokens: these were kept."""
        drafting = [r for r, depth in enumerate(depths) if depth > 0]
        self.model.record_written([rows[r] for r in drafting], [kept[r][: depths[r] - 1] for r in drafting])
