"""A draft vocabulary: the tokens that a head gives logits for, and their laws over the target's vocabulary.

A head with 8,192 of 49,152 tokens gives the other tokens probability 0. Its laws are sparse, so no tensor has the width
of the target's vocabulary. The exception is the logits of requests that need shaping (`core.shaping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from slipstream.core import sampling
from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.law import Law, OneHot, Sparse
from slipstream.core.shaping import Place, law_params, needs_shaping, shape
from slipstream.drafters.temperature import DraftTemperature


@dataclass(frozen=True)
class TrimmedVocabulary(DraftTemperature):
    """Base of the options of drafters with a draft vocabulary of their own."""

    # tokens of the draft vocabulary, those with the lowest ids, which tokenizers give to frequent tokens; default: all
    vocab: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab is not None and self.vocab < 1:
            raise ValueError(f"vocab is {self.vocab}; it must be 1 or more")


class DraftVocabulary:
    """`ids`: token id of each logit, in ascending order. `size`: size of the target's vocabulary.

    Ascending ids make the first of equally probable tokens the same in both vocabularies."""

    def __init__(self, ids: Int[Tensor, " draft_vocab"], size: int) -> None:
        assert bool((ids[1:] > ids[:-1]).all()), "a draft vocabulary ascends"
        self.ids, self.size = ids, size

    def law_at(
        self,
        logits: Float[Tensor, "n draft_vocab"],
        places: Sequence[Place],
        ranking: bool = False,
        temperature: float | None = None,
    ) -> Law:
        """The law of the next token at each place, equal to `shaping.law_at` with -inf for all other logits.

        If a request allows none of the draft tokens, all probabilities are 0."""
        changed = [i for i, (row, _) in enumerate(places) if needs_shaping(row)]
        empty = torch.zeros(0, dtype=torch.long)  # places at which no draft token is allowed
        if changed:
            logits = logits.clone() if logits.dtype == torch.float64 else logits.float().clone()
            index = torch.tensor(changed, device=logits.device)
            logits[index] = self._shaped(logits[index], [places[i] for i in changed])
            none_allowed = (logits[index] == -torch.inf).all(-1)
            empty = index[none_allowed] if bool(none_allowed.any()) else empty
            logits[empty] = 0.0
        params = law_params(places, ranking, temperature)
        truncated = any(param.truncates for param in params)
        return self._in_target_ids(sampling.law(logits, params), empty, truncated)

    def _shaped(
        self, logits: Float[Tensor, "n draft_vocab"], places: Sequence[Place]
    ) -> Float[Tensor, "n draft_vocab"]:
        wide = logits.new_full((len(logits), self.size), -torch.inf)
        wide[:, self.ids] = logits
        return shape(wide, places)[:, self.ids]

    def _in_target_ids(self, law: Law, empty: Int[Tensor, " m"], truncated: bool) -> Law:
        """The same law with the target's token ids, and probability 0 at the `empty` places.

        A truncated law keeps only its possible tokens, because the time of a race grows with the width of the law."""
        if isinstance(law, OneHot) and not len(empty):
            return OneHot(self.ids[law.token], self.size)
        probs = law.dense()
        if len(empty):
            probs = probs.index_fill(0, empty, 0.0)
        if truncated and 4 * (widest := max(1, int((probs > 0).sum(-1).max()))) < probs.shape[1]:
            best = probs.topk(widest)
            return Sparse(self.ids[best.indices], best.values, self.size)
        return Sparse(self.ids.expand(len(law), -1), probs, self.size)
