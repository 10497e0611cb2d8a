"""Drafting with heads that read the target's hidden states at the end of a row and keep no cache.

A row drafts nothing until the target has read its prompt. A draft is at most as deep as the network has heads. The
states of the committed tokens are the target's, so verdicts are not used.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.interfaces import Drafter, Needs, TargetFeatures, TargetModel
from slipstream.core.law import Law
from slipstream.core.noise import Noise
from slipstream.core.shaping import places
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.device.interface import DeviceDrafter
from slipstream.drafters.files.net_folder import check_target, load_net, trained_folder
from slipstream.drafters.heads.network import HeadsNet
from slipstream.drafters.levels.grow import NextLaw, grow
from slipstream.drafters.levels.slot_states import SlotStates
from slipstream.drafters.none import empty_draft
from slipstream.drafters.vocabulary import DraftVocabulary, TrimmedVocabulary
from slipstream.models.weights.linears import pack_as_target

LevelLogits = Callable[[Sequence[tuple[int, int]], Sequence[int], list[int]], Tensor]
"""(nodes, tokens, slots) -> logits after these slots, as `NextLaw`; a node is (row, parent). Called level by level."""


@dataclass(frozen=True)
class HeadsOptions(TrimmedVocabulary):
    """The options of `medusa`, `mlp` and `prophet`."""

    model: str | None = None  # the folder of trained heads, or a shipped one; default: the one shipped for the target


class HeadsDrafter(Drafter):
    """`draft_ids`: token id of each logit. `embedding`, `output` and `vocab` are the target's."""

    options_type = HeadsOptions
    draft_temperature: float | None = None
    kind: ClassVar[str]  # the registered name
    config_type: ClassVar[Any]

    def __init__(
        self,
        net: HeadsNet,
        draft_ids: Int[Tensor, " draft_vocab"],
        embedding: Float[Tensor, "vocab hidden"],
        output: Float[Tensor, "vocab hidden"],
        target: TargetFeatures,
        vocab: int,
    ) -> None:
        self.needs = Needs(net.config.features)
        self.vocabulary = DraftVocabulary(draft_ids, vocab)
        self.net, self.embedding, self._target = net, embedding, target
        self.output = nn.Linear(output.shape[1], len(draft_ids), bias=False, device="meta")
        self.output.weight = nn.Parameter(output[draft_ids], requires_grad=False)

    @classmethod
    def build(cls, target: TargetModel, options: HeadsOptions) -> HeadsDrafter:
        """Load trained heads from their folder."""
        folder = trained_folder(cls.kind, target, options.model)
        check_target(folder, target)
        net, draft_ids = load_net(
            folder,
            cls.kind,
            cls.config_type.of,
            lambda config, _: cls.make_net(config),
            target.embedding,
            target.output,
            options.vocab,
        )
        drafter = cls(net, draft_ids, target.embedding, target.output, target.features, target.vocab)
        drafter.pack(target.model.model)
        drafter.draft_temperature = options.draft_temperature
        return drafter

    @staticmethod
    @abstractmethod
    def make_net(config: Any) -> HeadsNet:
        """The network of a `config_type`."""

    def pack(self, target: nn.Module) -> None:
        """Give the network and the output rows the linear layers of the target's type."""
        both = nn.ModuleDict({"net": self.net, "output": self.output})
        pack_as_target(both, target)
        self.output = both["output"]  # type: ignore[assignment]

    def device_form(self, target: Any) -> DeviceDrafter | None:
        """Captured cycles draft at the temperature of each request."""
        if self.draft_temperature is not None:
            return None
        from slipstream.drafters.heads.device import HeadsDeviceDrafter

        return HeadsDeviceDrafter(self, target, target.decoder.like)

    @torch.inference_mode()
    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        ready = [
            replace(row_budget, depth=min(row_budget.depth, self.net.config.heads) if self.ready(row) else 0)
            for row, row_budget in zip(rows, budget, strict=True)
        ]
        depth = max((row_budget.depth for row_budget in ready), default=0)
        if not depth:
            return empty_draft(len(rows), self.vocabulary.size)
        ranking = any(row_budget.shape and row_budget.siblings is Siblings.CHOSEN for row_budget in budget)
        return grow(rows, ready, noise, self.laws(rows, depth, ranking), self.vocabulary.size)

    def ready(self, row: Row) -> bool:
        """Whether the target has read all tokens of a row but the last, which it reads together with the draft."""
        return row.length > 1 and self._target.cached(row) >= row.length - 1

    def laws(self, rows: Sequence[Row], depth: int, ranking: bool = False) -> NextLaw:
        """The laws for a draft of these rows that grows to a depth, level by level."""
        level_logits = self.level_logits(rows, depth)

        def next_law(tree: Tree, token: Tensor, slots: list[int]) -> Law:
            tokens = token.tolist()
            slot_places = places(rows, tree, tokens)
            logits = level_logits(tree.lists, tokens, slots)
            return self.vocabulary.law_at(
                logits, [slot_places[slot] for slot in slots], ranking, self.draft_temperature
            )

        return next_law

    def level_logits(self, rows: Sequence[Row], depth: int) -> LevelLogits:
        """The logits of one draft."""
        return self._parallel_logits(rows, depth) if self.net.parallel else self._recurrent_logits(rows)

    def end_states(self, rows: Sequence[Row]) -> Float[Tensor, "rows inner"]:
        """The network's states at the ends of rows."""
        features, tokens, lengths = list[Tensor](), list[list[int]](), list[int]()
        for row in rows:
            read = row.length - 1
            length = min(self.net.window, read)
            states = self._target.states(row, read - length)
            stacked = torch.cat([states[layer][:length] for layer in self.net.config.features], -1)
            missing = self.net.window - length
            features.append(functional.pad(stacked, (0, 0, missing, 0)) if missing else stacked)
            tokens.append([0] * missing + list(row.tokens[row.length - length :]))
            lengths.append(length)
        device = self.embedding.device
        embedding = self.embedded(tokens)
        return self.net.end_states(torch.stack(features), embedding, torch.tensor(lengths, device=device))

    def embedded(self, tokens: Sequence[Any]) -> Float[Tensor, "*n hidden"]:
        return functional.embedding(torch.tensor(tokens, device=self.embedding.device), self.embedding)

    def logits(self, vector: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n draft_vocab"]:
        logits: Tensor = self.output(vector)
        return logits

    def _parallel_logits(self, rows: Sequence[Row], depth: int) -> LevelLogits:
        """Of heads that do not see drafted tokens: the logits of all heads are computed at once."""
        by_head: list[Tensor] = []
        index: dict[int, int] = {}  # row -> index in the logits of a head
        level = 0

        def logits(nodes: Sequence[tuple[int, int]], tokens: Sequence[int], slots: list[int]) -> Tensor:
            nonlocal level
            if not by_head:
                state = self.end_states([rows[slot] for slot in slots])
                vectors = torch.stack([self.net.vector(state, head) for head in range(depth)])
                by_head.extend(self.logits(vectors))
                index.update({slot: n for n, slot in enumerate(slots)})
            numbers = [index[slot if slot < len(rows) else nodes[slot - len(rows)][0]] for slot in slots]
            head, level = by_head[level], level + 1
            return head if numbers == list(range(len(head))) else head[torch.tensor(numbers, device=head.device)]

        return logits

    def _recurrent_logits(self, rows: Sequence[Row]) -> LevelLogits:
        """Of heads that see the tokens drafted before them."""
        states = SlotStates()
        level = 0

        def logits(nodes: Sequence[tuple[int, int]], tokens: Sequence[int], slots: list[int]) -> Tensor:
            nonlocal level
            if level == 0:
                state = self.end_states([rows[slot] for slot in slots])
            else:
                new = [slot - len(rows) for slot in slots]
                before = states.before([nodes[node] for node in new], len(rows))
                state = self.net.step(before, self.embedded([tokens[node] for node in new]), level)
            states.add(slots, state)
            vector, level = self.net.vector(state, level), level + 1
            return self.logits(vector)

        return logits
