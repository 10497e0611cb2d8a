"""Drafting with a smaller model, token by token under the request's own sampling parameters.

After each verdict its KV cache keeps the accepted tokens and drops the others. Committed tokens that it has not read (a
recovered token, tokens of plain cycles or of another drafter) are read with the next step. The vocabularies may differ
by padding: ids that only the draft model has get probability 0, and ids that only the target has are never drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

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
from slipstream.drafters.draft_target import DraftTarget
from slipstream.drafters.levels.grow import grow, locate
from slipstream.drafters.levels.slot_states import slot_states
from slipstream.drafters.vocabulary import DraftVocabulary
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.load import ModelFiles


@dataclass(frozen=True, eq=False)
class Proposal:
    """The data of a proposed draft that `observe` needs."""

    run: Draft  # the nodes that the draft model has run, with its own token ids
    number: Int[Tensor, " nodes"]  # index of each drafted node in `run`; -1 if the model has not run it


class DraftModel(Drafter):
    """`vocab`: size of the target's vocabulary. `ids`: token id of each logit, if these are not the first ids.

    `files`: where the model is stored, if it is a complete model."""

    options_type = DraftModelOptions
    reads_target: ClassVar[bool] = False
    draft_temperature: float | None = None

    def __init__(
        self,
        model: TorchModel,
        vocab: int,
        ids: Int[Tensor, " draft_vocab"] | None = None,
        files: ModelFiles | None = None,
    ) -> None:
        self.model, self.vocab, self._files = model, vocab, files
        self._vocabulary = None if ids is None else DraftVocabulary(ids, vocab)
        # the latest proposal of each row; in one cycle, rows with different rules have separate proposals
        self._proposals: dict[Row, Proposal] = {}

    @classmethod
    def build(cls, target: TargetModel, options: DraftModelOptions) -> Drafter:
        drafter = cls._load(target, options)
        if isinstance(drafter, DraftModel):
            drafter.draft_temperature = options.draft_temperature
        elif options.draft_temperature is not None:
            raise ValueError("draft_temperature needs a draft model that samples, and this one's tokens are chosen")
        return drafter

    @classmethod
    def _load(cls, target: TargetModel, options: DraftModelOptions) -> Drafter:
        loaded = load_draft_model(target, options)
        if loaded.text is not None:
            from slipstream.drafters.translated.build import build_translated  # it builds a subclass of this class

            return build_translated(target, loaded.model, loaded.text, loaded.tokens)
        return cls(loaded.model, target.vocab, loaded.ids, loaded.files)

    @property
    def own_model(self) -> TorchModel:
        return self.model

    def as_target(self, target: TargetModel) -> DraftTarget | None:
        return DraftTarget(self.model, target, self._files)

    @property
    def ids(self) -> Int[Tensor, " draft_vocab"] | None:
        """Token id of each logit; None if these are the first ids of the vocabulary."""
        return None if self._vocabulary is None else self._vocabulary.ids

    def open(self, rows: Sequence[Row]) -> None:
        self.model.open(rows, encode=self.model.device.type != "cpu")  # there, an encoder takes as long as many tokens

    def setup_seconds(self, row: Row) -> float:
        return self.model.encoder_seconds(row)

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._proposals.pop(row, None)
        self.model.close(rows)

    def rewind(self, row: Row, length: int) -> None:
        self._proposals.pop(row, None)
        self.model.rewind(row, length)

    def own_law(self, rows: Sequence[Row], draft: Draft, scores: Scores) -> Law:
        return self._law(scores.logits, places(rows, draft.tree, draft.token.tolist()), ranking=False)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        budget = [
            replace(row_budget, depth=min(row_budget.depth, room))
            for row_budget, room in zip(budget, self.follow(rows), strict=True)
        ]
        ranking = any(row_budget.shape and row_budget.siblings is Siblings.CHOSEN for row_budget in budget)
        opened, model_rows = (Tree.chains([0] * len(rows)), torch.zeros(0, dtype=torch.long)), self.model_rows(rows)

        def next_law(tree: Tree, token: Tensor, slots: list[int]) -> Law:
            nonlocal opened
            opened = tree, token
            slot_places = places(rows, tree, token.tolist())
            states = slot_states(self.model, model_rows, tree, self.model_tokens(token), slots, self.model.layers)
            return self._law(self.model_logits(states), [slot_places[slot] for slot in slots], ranking)

        draft = grow(rows, budget, noise, next_law, self.vocab)
        number = torch.tensor(locate(draft, *opened), dtype=torch.long)
        token = self.model_tokens(opened[1])
        run = Draft(opened[0], token, OneHot(token, self.vocab))
        self._proposals |= dict.fromkeys(rows, Proposal(run, number))
        return draft

    def follow(self, rows: Sequence[Row]) -> list[int]:
        """Prepare the rows for a draft. Returns how many tokens the model's context allows each to draft."""
        return [max(0, self.model.context - row.length) for row in rows]

    def model_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows that the model reads."""
        return rows

    def model_tokens(self, token: Int[Tensor, " nodes"]) -> Int[Tensor, " nodes"]:
        """The model's ids of drafted tokens."""
        return token

    def model_logits(self, states: Float[Tensor, "n hidden"]) -> Float[Tensor, "n draft_vocab"]:
        """The model's logits of the tokens that it may draft."""
        return self.model.logits(states)

    def _law(self, logits: Float[Tensor, "n draft_vocab"], where: Sequence[Place], ranking: bool) -> Law:
        if self._vocabulary is not None:
            return self._vocabulary.law_at(logits, where, ranking, self.draft_temperature)
        return law_at(self._fit(logits), where, ranking, self.draft_temperature)

    def _fit(self, logits: Float[Tensor, "n draft_vocab"]) -> Float[Tensor, "n vocab"]:
        """Cut or pad to the target's vocabulary."""
        missing = self.vocab - logits.shape[1]
        if missing <= 0:
            return logits[:, : self.vocab]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)

    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        """Commit the accepted path to the draft model's cache. `rows` are those of one proposal, in its order."""
        proposal = self._proposals[rows[0]]
        number = torch.cat([proposal.number, proposal.number.new_full((1,), -1)]).to(verdict.path.device)
        self.commit(rows, proposal.run, replace(verdict, path=number[verdict.path]))

    def commit(self, rows: Sequence[Row], run: Draft, verdict: Verdict) -> None:
        """Keep the accepted nodes of `run` in the cache."""
        self.model.commit(rows, verdict, run)

    def device_form(self, target: Any) -> DeviceDrafter | None:
        """A draft model drafts on the device if its own passes can be captured, at the temperature of each request."""
        if self.draft_temperature is not None:
            return None
        try:
            from slipstream.drafters.device.draft_model import DraftModelDevice
            from slipstream.models.run.gpu.passes import GpuPasses
        except ImportError:  # Triton is not installed
            return None
        passes = self.model.decoder
        return DraftModelDevice(self, passes) if isinstance(passes, GpuPasses) else None

    def record_steps(self, rows: Sequence[Row], depths: Sequence[int], accepted: Sequence[Sequence[int]]) -> None:
        """Record that a captured cycle ran the model over the committed end and the draft of each drafting row.

        The last of `depths[r]` drafted tokens was not run. `accepted`: the accepted tokens of each row."""
        drafting = [r for r, depth in enumerate(depths) if depth > 0]
        self.model.record_written([rows[r] for r in drafting], [accepted[r][: depths[r] - 1] for r in drafting])
