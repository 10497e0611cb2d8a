"""A draft vocabulary: the tokens a head gives logits for, and their laws over the target's whole vocabulary.

A head that knows 8,192 of 49,152 tokens gives the others no probability. The law over the whole vocabulary is then zero
elsewhere, which every rule takes as it comes, so nothing ever has the width of the whole vocabulary but the logits of a
request whose settings change logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core import sampling
from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.law import Law, OneHot, Sparse
from slipstream.core.shaping import Place, needs_shaping, ranking_sampling, shape


class DraftVocabulary:
    """`ids` ascend, so that among equally likely tokens the first here is the first there; `size` is the target's."""

    def __init__(self, ids: Int[Tensor, " draft_vocab"], size: int) -> None:
        assert bool((ids[1:] > ids[:-1]).all()), "a draft vocabulary ascends"
        self.ids, self.size = ids, size

    def law_at(self, logits: Float[Tensor, "n draft_vocab"], places: Sequence[Place], ranking: bool = False) -> Law:
        """The law of the next token at each place, as `shaping.law_at` gives it where all other logits are -inf. Where
        a request allows none of these tokens there is no law, and every probability is 0."""
        touched = [i for i, (row, _) in enumerate(places) if needs_shaping(row)]
        dead = torch.zeros(0, dtype=torch.long)
        if touched:
            logits = logits.clone() if logits.dtype == torch.float64 else logits.float().clone()
            index = torch.tensor(touched, device=logits.device)
            logits[index] = self._shaped(logits[index], [places[i] for i in touched])
            lost = (logits[index] == -torch.inf).all(-1)
            dead = index[lost] if bool(lost.any()) else dead
            logits[dead] = 0.0
        params = [ranking_sampling(row) if ranking else row.request.sampling for row, _ in places]
        cut = any(param.truncates for param in params)
        return self._named(sampling.law(logits, params), dead, cut)

    def _shaped(
        self, logits: Float[Tensor, "n draft_vocab"], places: Sequence[Place]
    ) -> Float[Tensor, "n draft_vocab"]:
        wide = logits.new_full((len(logits), self.size), -torch.inf)
        wide[:, self.ids] = logits
        return shape(wide, places)[:, self.ids]

    def _named(self, law: Law, dead: Int[Tensor, " m"], cut: bool) -> Law:
        """The same law with the target's names for the tokens. Where most were cut off, only the rest is carried
        along: a race costs as much as its field is wide."""
        if isinstance(law, OneHot) and not len(dead):
            return OneHot(self.ids[law.token], self.size)
        probs = law.dense()
        if len(dead):
            probs = probs.index_fill(0, dead, 0.0)
        if cut and 4 * (widest := max(1, int((probs > 0).sum(-1).max()))) < probs.shape[1]:
            best = probs.topk(widest)
            return Sparse(self.ids[best.indices], best.values, self.size)
        return Sparse(self.ids.expand(len(law), -1), probs, self.size)
