"""The EAGLE drafter: one decoder layer that reads the target's hidden states, with a small draft vocabulary.

What the target knew at each committed position is the best guide to what comes next, so the head never guesses it: a
committed slot always reads the target's states, and the head's own states lead only from there on (`network`). A row
whose prompt the target has not read yet drafts nothing. Nothing is learnt from verdicts: what a row committed, and the
target's states of it, say it all, after rejections, plain steps and another drafter's turn alike. Only a prompt is read
as soon as the target has read it, so that the first draft costs what every draft costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
from slipstream.drafters.eagle.cpu_draft import draft_whole
from slipstream.drafters.eagle.folder import load_head
from slipstream.drafters.eagle.network import EagleNet
from slipstream.drafters.files.shipped import shipped, shipped_for
from slipstream.drafters.grow import NextLaw, grow
from slipstream.drafters.none import nothing
from slipstream.drafters.vocabulary import DraftVocabulary
from slipstream.models.cache.packing import Entry
from slipstream.models.weights.linears import pack_linears, products, row_bits


@dataclass(frozen=True)
class EagleOptions:
    model: str | None = None  # the head's folder, or the name of a shipped one; default: the one shipped for the target


class Eagle(Drafter):
    """`draft_ids` are the tokens `net` gives logits for, of the `vocab` tokens that `embedding` has rows for."""

    options_type = EagleOptions

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
        embedding, model = target.embedding, target.model.model
        net, draft_ids = load_head(_head_folder(target, options), embedding, target.output)
        if embedding.is_cpu and embedding.dtype == torch.float32:
            integers = products(model) is not None
            pack_linears(net, integers=integers, rounded=integers, row_bits=row_bits(model))
        return cls(net, draft_ids, embedding, target.features, target.vocab)

    def open(self, rows: Sequence[Row]) -> None:
        self.slots.open(rows)

    def close(self, rows: Sequence[Row]) -> None:
        self.slots.close(rows)

    def device_form(self, target: Any) -> DeviceDrafter:
        from slipstream.drafters.eagle.device import EagleDeviceDrafter

        return EagleDeviceDrafter(self, target, target.decoder.like)

    @torch.inference_mode()
    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        ready = [
            spend if spend.depth == 0 or self.slots.ready(row) else replace(spend, depth=0)
            for row, spend in zip(rows, budget, strict=True)
        ]
        if not any(spend.depth for spend in ready):
            return nothing(len(rows), self.vocabulary.size)
        whole = draft_whole(self.slots, rows, ready, noise, self.vocabulary)
        if whole is not None:
            return whole
        ranking = any(spend.shape and spend.siblings is Siblings.CHOSEN for spend in budget)
        return grow(rows, ready, noise, self.laws(rows, ranking), self.vocabulary.size)

    def laws(self, rows: Sequence[Row], ranking: bool = False) -> NextLaw:
        """The laws of a draft that grows."""
        run = HeadDraft(self.slots, rows)

        def next_law(tree: Tree, token: Tensor, slots: list[int]) -> Law:
            words = token.tolist()
            everywhere = places(rows, tree, words)
            logits = self.slots.logits(run.after(tree.lists, words, slots))
            return self.vocabulary.law_at(logits, [everywhere[slot] for slot in slots], ranking)

        return next_law

    @torch.inference_mode()
    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        self.slots.catch_up(rows)


def _head_folder(target: TargetModel, options: EagleOptions) -> Path:
    if options.model is not None:
        return shipped().get(options.model, Path(options.model))
    folder = shipped_for("eagle", target.files.name, target.files.sha256)
    if folder is None:
        raise ValueError(
            f"no eagle head is shipped for {target.files.name}; `slipstream train eagle` makes one for -d FOLDER"
        )
    return folder


class HeadDraft:
    """One draft while it grows: what the head gave at each slot, and the nodes it ran over."""

    def __init__(self, slots: HeadCache, rows: Sequence[Row]) -> None:
        self._slots, self._rows = slots, rows
        self._states: list[Float[Tensor, "some hidden"]] = []
        self._line: dict[int, int] = {}  # slot -> where its state stands in these, laid end to end
        self._run: list[list[Entry]] = [[] for _ in rows]  # nodes of each row, in the order they were run
        self._number: list[int] = []  # of each node in that order

    def after(
        self, nodes: Sequence[tuple[int, int]], token: Sequence[int], asked: Sequence[int]
    ) -> Float[Tensor, "asked hidden"]:
        """The head's states at these slots: row ends at first, then the nodes that are new, row after row; `nodes` and
        `token` are the draft so far, (row, parent) and token."""
        if len(self._number) == len(nodes):
            state = self._slots.ends([self._rows[slot] for slot in asked])
        else:
            state = self._step(nodes[len(self._number) :], token[len(self._number) :])
        self._line |= {slot: len(self._line) + n for n, slot in enumerate(asked)}
        self._states.append(state)
        return state

    def _step(self, new: Sequence[tuple[int, int]], token: Sequence[int]) -> Float[Tensor, "new hidden"]:
        touched = list(dict.fromkeys(r for r, _ in new))
        skip = [len(self._run[r]) for r in touched]
        for (r, parent), word in zip(new, token, strict=True):
            self._number.append(len(self._run[r]))
            self._run[r].append((word, self._number[parent] if parent >= 0 else -1))
        before = self._at([r if parent < 0 else parent + len(self._rows) for r, parent in new])
        rows, run = [self._rows[r] for r in touched], [self._run[r] for r in touched]
        return self._slots.step(rows, run, skip, before)

    def _at(self, slots: Sequence[int]) -> Float[Tensor, "slots hidden"]:
        """In a chain each slot follows the one before, so the states wanted are mostly those that came last."""
        lines, last = [self._line[slot] for slot in slots], self._states[-1]
        if lines == list(range(len(self._line) - len(last), len(self._line))):
            return last
        return torch.cat(self._states)[torch.tensor(lines, device=last.device)]
