"""The tokens that two vocabularies have in common.

Two tokens are the same if they add the same bytes to a text. Special tokens are the same if they are written alike. So
a byte-level vocabulary and a SentencePiece vocabulary have words, spaces and single bytes in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slipstream.models.text.codec import TextCodec

Spelling = tuple[bool, bytes]
"""Whether a token is special, and its bytes."""


@dataclass(frozen=True, eq=False)
class TokenMap:
    """Pairs of equal tokens, in ascending order of the target's ids. Each token occurs in one pair at most."""

    target: np.ndarray  # token ids of the target
    draft: np.ndarray  # token ids of the draft model
    share: float  # of the target's tokens that are in a pair

    @staticmethod
    def of(target: TextCodec, draft: TextCodec) -> TokenMap:
        targets, drafts = spellings(target), spellings(draft)
        pairs = sorted((i, drafts[spelling]) for spelling, i in targets.items() if spelling in drafts)
        table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return TokenMap(table[:, 0].copy(), table[:, 1].copy(), len(pairs) / max(1, len(targets)))


def spellings(codec: TextCodec) -> Mapping[Spelling, int]:
    """The id of each spelling. Of tokens with one spelling, a byte token comes last, and then the lowest id is taken.

    SentencePiece models write a letter as its own token where there is one, and as byte tokens otherwise."""
    ids: dict[Spelling, tuple[bool, int]] = {}
    for i in codec.token_ids():
        spelling = codec.is_special(i), codec.spelling(i)
        rank = codec.is_byte(i), i
        if spelling[1] and rank < ids.get(spelling, (True, i + 1)):
            ids[spelling] = rank
    return {spelling: i for spelling, (_, i) in ids.items()}
