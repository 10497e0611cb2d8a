"""The EAGLE drafter: one decoder layer that reads the target's hidden states, with a small draft vocabulary.

A committed slot reads the target's hidden states, and a drafted slot the head's own state (`network`). A row drafts
nothing until the target has read its prompt. The head's cache depends only on the committed tokens and the target's
states of them, so verdicts are not used. `observe` reads prompts as soon as the target has read them, so that the first
draft takes no longer than later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.interfaces import Drafter, Needs, TargetFeatures, TargetModel
from slipstream.core.law import Law
from slipstream.core.noise import Noise
from slipstream.core.shaping import places
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row, Scores, Verdict
from slipstream.drafters.device.interface import DeviceDrafter
from slipstream.drafters.eagle.cache import HeadCache
from slipstream.drafters.eagle.cpu_draft import draft_in_one_call
from slipstream.drafters.eagle.folder import load_head
from slipstream.drafters.eagle.network import EagleNet
from slipstream.drafters.files.net_folder import check_target, trained_folder
from slipstream.drafters.levels.grow import NextLaw, grow
from slipstream.drafters.levels.slot_states import SlotStates
from slipstream.drafters.none import empty_draft
from slipstream.drafters.vocabulary import DraftVocabulary, TrimmedVocabulary
from slipstream.kernels.cpu.runs.cycle_run import ChainHead
from slipstream.models.cache.packing import Entry
from slipstream.models.weights.linears import pack_as_target


@dataclass(frozen=True)
class EagleOptions(TrimmedVocabulary):
    """The options of `eagle`."""

    model: str | None = None  # the head's folder, or the name of a shipped one; default: the one shipped for the target


class Eagle(Drafter):
    """`draft_ids`: token id of each logit of `net`. `embedding` and `vocab` are the target's."""

    options_type = EagleOptions
    draft_temperature: float | None = None

    def __init__(
        self,
        net: EagleNet,
        draft_ids: Int[Tensor, " draft_vocab"],
        embedding: Float[Tensor, "vocab hidden"],
        target: TargetFeatures,
        vocab: int,
    ) -> None:
        self.needs = Needs(net.config.features)
        self.vocabulary = DraftVocabulary(draft_ids, vocab)
        self.slots = HeadCache(net, draft_ids, embedding, target)

    @classmethod
    def build(cls, target: TargetModel, options: EagleOptions) -> Eagle:
        """Load a trained head from its folder."""
        folder = trained_folder("eagle", target, options.model)
        check_target(folder, target)
        net, draft_ids = load_head(folder, target.embedding, target.output, options.vocab)
        pack_as_target(net, target.model.model)
        drafter = cls(net, draft_ids, target.embedding, target.features, target.vocab)
        drafter.draft_temperature = options.draft_temperature
        return drafter

    def open(self, rows: Sequence[Row]) -> None:
        self.slots.open(rows)

    def close(self, rows: Sequence[Row]) -> None:
        self.slots.close(rows)

    def rewind(self, row: Row, length: int) -> None:
        self.slots.rewind(row, length)

    def device_form(self, target: Any) -> DeviceDrafter | None:
        """Captured cycles draft at the temperature of each request."""
        if self.draft_temperature is not None:
            return None
        from slipstream.drafters.eagle.device import EagleDeviceDrafter

        return EagleDeviceDrafter(self, target, target.decoder.like)

    @property
    def has_chain_head(self) -> bool:
        return self.draft_temperature is None and self.slots.has_chain_head

    @torch.inference_mode()
    def chain_head(self, row: Row, tokens: int) -> ChainHead | None:
        return self.slots.chain_head(row, tokens) if self.has_chain_head and self.slots.ready(row) else None

    @torch.inference_mode()
    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        ready = [
            row_budget if row_budget.depth == 0 or self.slots.ready(row) else replace(row_budget, depth=0)
            for row, row_budget in zip(rows, budget, strict=True)
        ]
        if not any(row_budget.depth for row_budget in ready):
            return empty_draft(len(rows), self.vocabulary.size)
        if self.draft_temperature is None:  # one call drafts at the temperature of each request
            draft = draft_in_one_call(self.slots, rows, ready, noise, self.vocabulary)
            if draft is not None:
                return draft
        ranking = any(row_budget.shape and row_budget.siblings is Siblings.CHOSEN for row_budget in budget)
        return grow(rows, ready, noise, self.laws(rows, ranking), self.vocabulary.size)

    def laws(self, rows: Sequence[Row], ranking: bool = False) -> NextLaw:
        """The laws for a draft of these rows that grows level by level."""
        run = HeadDraft(self.slots, rows)

        def next_law(tree: Tree, token: Tensor, slots: list[int]) -> Law:
            tokens = token.tolist()
            slot_places = places(rows, tree, tokens)
            logits = self.slots.logits(run.states(tree.lists, tokens, slots))
            return self.vocabulary.law_at(
                logits, [slot_places[slot] for slot in slots], ranking, self.draft_temperature
            )

        return next_law

    @torch.inference_mode()
    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        self.slots.catch_up(rows)


class HeadDraft:
    """One draft while it grows: the head's state at each slot, and the nodes that the head has run."""

    def __init__(self, slots: HeadCache, rows: Sequence[Row]) -> None:
        self._slots, self._rows, self._states = slots, rows, SlotStates()
        self._run: list[list[Entry]] = [[] for _ in rows]  # nodes of each row, in the order in which they ran
        self._number: list[int] = []  # index of each node within its row, in that order

    def states(
        self, nodes: Sequence[tuple[int, int]], token: Sequence[int], slots: Sequence[int]
    ) -> Float[Tensor, "slots hidden"]:
        """The head's states at these slots: in the first call row ends, later the new nodes, row after row.

        `nodes` and `token`: (row, parent) and token of all nodes of the draft so far."""
        if len(self._number) == len(nodes):
            state = self._slots.end_states([self._rows[slot] for slot in slots])
        else:
            state = self._step(nodes[len(self._number) :], token[len(self._number) :])
        self._states.add(slots, state)
        return state

    def _step(self, new: Sequence[tuple[int, int]], tokens: Sequence[int]) -> Float[Tensor, "new hidden"]:
        """Run new nodes, given as (row, parent) and token."""
        active = list(dict.fromkeys(r for r, _ in new))
        skip = [len(self._run[r]) for r in active]
        for (r, parent), token in zip(new, tokens, strict=True):
            self._number.append(len(self._run[r]))
            self._run[r].append((token, self._number[parent] if parent >= 0 else -1))
        before = self._states.before(new, len(self._rows))
        rows, run = [self._rows[r] for r in active], [self._run[r] for r in active]
        return self._slots.step(rows, run, skip, before)
