"""What the draft model would do alone: its own plain speed belongs in every comparison."""

from __future__ import annotations

import time

from slipstream.core.loop import decode
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.core.verify_match import Greedy
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.none import NoDrafter
from slipstream.engines.base import Completion
from slipstream.engines.native.engine import NativeEngine
from slipstream.plan.policy import Fixed


def draft_speed(engine: NativeEngine, like: Completion, tokens: int = 32) -> float | None:
    """Tokens per second of the draft model by itself, greedy; None where no model drafts."""
    drafter = engine.drafter(engine.drafter_name)
    if not isinstance(drafter, DraftModel) or not like.tokens:
        return None
    row = Row(Request(like.tokens[:16], Sampling(temperature=0), tokens))
    started = time.perf_counter()
    for _ in decode([row], drafter.model, NoDrafter(drafter.model.vocab), Greedy(), Fixed(0)):
        pass
    return len(row.output) / (time.perf_counter() - started)
