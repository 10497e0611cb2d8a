"""The DFlash drafter: one pass of a small stack gives the laws of a whole block of tokens.

The law of a drafted token depends on its depth only, so chains and trees use the same laws. With a Markov head it also
depends on the token before it (`markov`); on a CPU chains are then drafted by `cpu_chain`. A row drafts nothing until
the target has read its prompt. The cache holds committed positions only, so verdicts are not used. `observe` reads
prompts as soon as the target has read them, so that the first draft takes no longer than later ones.
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
from slipstream.drafters.dflash.cache import BlockCache
from slipstream.drafters.dflash.chain import draft_chains, independent_chains
from slipstream.drafters.dflash.cpu_chain import CpuChains, cpu_chains
from slipstream.drafters.dflash.folder import KIND, load_stack
from slipstream.drafters.dflash.markov import MarkovLogits
from slipstream.drafters.dflash.network import DflashNet
from slipstream.drafters.files.net_folder import check_target, trained_folder
from slipstream.drafters.levels.grow import NextLaw, grow
from slipstream.drafters.none import empty_draft
from slipstream.drafters.vocabulary import DraftVocabulary, TrimmedVocabulary
from slipstream.models.weights.linears import pack_as_target


@dataclass(frozen=True)
class DflashOptions(TrimmedVocabulary):
    """The options of `dflash`."""

    model: str | None = None  # the folder, or the name of a shipped drafter; default: the one shipped for the target


class Dflash(Drafter):
    """`draft_ids`: token id of each logit of `net`. `embedding` and `vocab` are the target's."""

    options_type = DflashOptions
    draft_temperature: float | None = None

    def __init__(
        self,
        net: DflashNet,
        draft_ids: Int[Tensor, " draft_vocab"],
        embedding: Float[Tensor, "vocab hidden"],
        target: TargetFeatures,
        vocab: int,
    ) -> None:
        self.needs = Needs(net.config.features)
        self.block = net.config.block
        self.vocabulary = DraftVocabulary(draft_ids, vocab)
        self.slots = BlockCache(net, embedding, target)
        self.markov: MarkovLogits | None = None
        if net.markov is not None:
            self.markov = MarkovLogits(net.markov, net.norm_embedding, embedding, net.output)
        self.cpu_chains: CpuChains | None = None  # the Markov head on its kernel

    @classmethod
    def build(cls, target: TargetModel, options: DflashOptions) -> Dflash:
        """Load a trained stack from its folder."""
        folder = trained_folder(KIND, target, options.model)
        check_target(folder, target)
        net, draft_ids = load_stack(folder, target.embedding, target.output, options.vocab)
        pack_as_target(net, target.model.model)
        drafter = cls(net, draft_ids, target.embedding, target.features, target.vocab)
        if drafter.markov is not None:
            drafter.pack_markov(target.model.model)
        drafter.draft_temperature = options.draft_temperature
        return drafter

    def pack_markov(self, target: torch.nn.Module) -> None:
        """Pack the large weights of the Markov head as the target's, if it runs on a CPU, and use its kernel."""
        assert self.markov is not None
        pack_as_target(self.markov, target)
        self.cpu_chains = cpu_chains(self.markov, self.vocabulary)

    def open(self, rows: Sequence[Row]) -> None:
        self.slots.open(rows)

    def close(self, rows: Sequence[Row]) -> None:
        self.slots.close(rows)

    def device_form(self, target: Any) -> DeviceDrafter | None:
        """Chains of whole blocks; None if the block is smaller than the deepest captured chain, or for masked stacks.

        Captured cycles draft at the temperature of each request."""
        if self.draft_temperature is not None or self.slots.net.config.layout != "joined":
            return None
        from slipstream.drafters.dflash.device import DEEPEST, DflashDeviceDrafter

        return DflashDeviceDrafter(self, target, target.decoder.like) if self.block >= DEEPEST else None

    @torch.inference_mode()
    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        """A depth beyond the block is cut to the block."""
        budget = [
            replace(spend, depth=min(spend.depth, self.block) if self.slots.ready(row) else 0) if spend.depth else spend
            for row, spend in zip(rows, budget, strict=True)
        ]
        depth = max((spend.depth for spend in budget), default=0)
        if not depth:
            return empty_draft(len(rows), self.vocabulary.size)
        drafting = [row for row, spend in zip(rows, budget, strict=True) if spend.depth]
        outputs = self.slots.outputs(drafting, depth)
        if independent_chains(rows, budget):
            if self.markov is None:
                return draft_chains(rows, budget, noise, outputs, self.vocabulary, self.draft_temperature)
            if self.cpu_chains is not None and self.draft_temperature is None:
                draft = self.cpu_chains.draft(rows, budget, noise, outputs)
                if draft is not None:
                    return draft
        ranking = any(spend.shape and spend.siblings is Siblings.CHOSEN for spend in budget)
        return grow(rows, budget, noise, self.laws(rows, drafting, outputs, ranking), self.vocabulary.size)

    def laws(
        self,
        rows: Sequence[Row],
        drafting: Sequence[Row],
        outputs: Float[Tensor, "drafting depth draft_vocab_and_width"],
        ranking: bool = False,
    ) -> NextLaw:
        """The laws for a draft of these rows that grows level by level. `drafting`: the rows of the outputs."""
        line, depth, flat = {row: n for n, row in enumerate(drafting)}, outputs.shape[1], outputs.flatten(0, 1)

        def next_law(tree: Tree, token: Tensor, slots: list[int]) -> Law:
            slot_places = places(rows, tree, token.tolist())
            where = [slot_places[slot] for slot in slots]
            index = [line[row] * depth + len(path) for row, path in where]
            logits = flat[torch.tensor(index, device=flat.device)]
            if self.markov is not None:
                before = [path[-1] if path else row.tokens[-1] for row, path in where]
                logits = self.markov(logits, torch.tensor(before, device=logits.device))
            return self.vocabulary.law_at(logits, where, ranking, self.draft_temperature)

        return next_law

    @torch.inference_mode()
    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        self.slots.catch_up(rows)
