"""Complete drafts of the EAGLE head in one kernel call (`kernels.cpu.draft`)."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.noise import Noise
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.eagle.cache import HeadCache
from slipstream.drafters.levels.one_call import candidate_mode, drafted, noise_keys
from slipstream.drafters.vocabulary import DraftVocabulary


def draft_in_one_call(
    slots: HeadCache, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise, vocabulary: DraftVocabulary
) -> Draft | None:
    """The draft that `grow` would make, in one kernel call; None if the kernel does not support it."""
    mode = candidate_mode(rows, budget, noise.has_fields, vocabulary.size) if slots.has_kernel else None
    keys = None if mode is None else noise_keys(mode, budget, noise)
    if mode is None or keys is None:
        return None
    drafting = [r for r, row_budget in enumerate(budget) if row_budget.depth]
    nodes = slots.drafts(mode, [rows[r] for r in drafting], [budget[r] for r in drafting], keys)
    return drafted(mode, budget, nodes, vocabulary)
