"""String-level drafting with another tokenizer (universal assisted generation).

The draft model continues the text greedily with any of its tokens. The text that it adds is tokenized by the target's
tokenizer, and these tokens are drafted. They depend on the committed text alone and on no random number, so they are
chosen: every law is one-hot, and every rule stays exact. A word that is one token of the target and several of the
draft model can be drafted in this way. At high temperatures a sampled draft is accepted more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from slipstream.core.interfaces import Drafter
from slipstream.core.law import OneHot
from slipstream.core.noise import Noise
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row, Verdict
from slipstream.drafters.levels.slot_states import slot_states
from slipstream.drafters.none import empty_draft
from slipstream.drafters.translated.draft_texts import DraftTexts
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.text.codec import TextCodec

JOINED = 4  # committed tokens that are tokenized together with the draft, since tokens may span its beginning


class StringDraft(Drafter):
    """Drafts one path, also where a tree is asked for. `vocab`: size of the target's vocabulary."""

    siblings: ClassVar[frozenset[Siblings]] = frozenset({Siblings.CHOSEN})

    def __init__(self, model: TorchModel, vocab: int, target_text: TextCodec, draft_text: TextCodec) -> None:
        self.model, self.vocab = model, vocab
        self._texts = DraftTexts(model, target_text, draft_text)

    @property
    def own_model(self) -> TorchModel:
        return self.model

    def open(self, rows: Sequence[Row]) -> None:
        self._texts.open(rows)

    def close(self, rows: Sequence[Row]) -> None:
        self._texts.close(rows)

    def rewind(self, row: Row, length: int) -> None:
        self._texts.rewind(row, length)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        depths = [min(each.depth, room) for each, room in zip(budget, self._texts.follow(rows), strict=True)]
        continued = self._continue(self._texts.rows(rows), depths)
        chains = [
            self._in_target_tokens(row, ids)[: min(each.depth, each.shape.size) if each.shape else each.depth]
            for row, ids, each in zip(rows, continued, budget, strict=True)
        ]
        if not any(chains):
            return empty_draft(len(rows), self.vocab)
        token = torch.tensor([token for chain in chains for token in chain])
        return Draft(Tree.chains([len(chain) for chain in chains]), token, OneHot(token, self.vocab), Siblings.CHOSEN)

    def _continue(self, rows: Sequence[Row], depths: Sequence[int]) -> list[list[int]]:
        """The most probable continuation of each row in the draft model's tokens, up to a special token."""
        chains: list[list[int]] = [[] for _ in rows]
        active = [r for r, depth in enumerate(depths) if depth > 0]
        while active:
            tree = Tree.chains([len(chain) for chain in chains])
            token = torch.tensor([token for chain in chains for token in chain], dtype=torch.long)
            slots = [tree.rows + tree.lines[r][-1] if chains[r] else r for r in active]
            states = slot_states(self.model, rows, tree, token, slots, self.model.layers)
            best = self.model.logits(states).argmax(-1).tolist()
            next_active = []
            for r, token_id in zip(active, best, strict=True):
                if self._texts.draft.is_special(token_id):
                    continue
                chains[r].append(token_id)
                next_active += [r] if len(chains[r]) < depths[r] else []
            active = next_active
        self._keep(rows, chains)
        return chains

    def _keep(self, rows: Sequence[Row], chains: Sequence[Sequence[int]]) -> None:
        """Keep the continuations in the cache. The next draft drops what the committed text then lacks of them."""
        if not any(chains):
            return
        tree = Tree.chains([len(chain) for chain in chains])
        token = torch.tensor([token for chain in chains for token in chain])
        nothing = torch.zeros(len(rows), dtype=torch.long)
        self.model.commit(
            rows, Verdict(tree.chain, nothing, nothing.bool()), Draft(tree, token, OneHot(token, self.vocab))
        )
        for row, chain in zip(rows, chains, strict=True):
            row.tokens = [*row.tokens, *chain]

    def _in_target_tokens(self, row: Row, ids: Sequence[int]) -> list[int]:
        """The target's tokens of the text that the draft model added."""
        target = self._texts.target
        added = b"".join(self._texts.draft.spelling(i) for i in ids)
        before = row.tokens[-JOINED:]
        joined = target.encode_bytes(b"".join(map(target.spelling, before)) + added, begin=False) or []
        if joined[: len(before)] == before:
            tokens = joined[len(before) :]
        else:
            tokens = target.encode_bytes(added, begin=False) or []
        end = next((n for n, token in enumerate(tokens) if token in row.request.ends or token >= self.vocab), None)
        return tokens if end is None else tokens[:end]
