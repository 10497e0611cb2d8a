"""A rule that wraps another one and shows each draft with its verdict to an observer."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from slipstream.core.interfaces import Verifier
from slipstream.core.law import Law
from slipstream.core.noise import Noise
from slipstream.core.types import Draft, Verdict

Watch = Callable[[Draft, Law, Verdict], None]
"""(draft, the target's law after every slot, verdict) -> None. It delays decoding, so it should be fast."""


class ObservedRule(Verifier):
    """Verifies as another rule does, and calls `watch` after each verdict."""

    name: ClassVar[str] = "watched"
    lossless: ClassVar[bool] = True

    def __init__(self, rule: Verifier, watch: Watch) -> None:
        self._rule, self._watch = rule, watch
        self.name, self.lossless = rule.name, rule.lossless  # type: ignore[misc]
        self.shared, self.siblings = rule.shared, rule.siblings  # type: ignore[misc]
        self.needs_draft, self.fixed_schedule = rule.needs_draft, rule.fixed_schedule  # type: ignore[misc]
        self.argmax, self.stop_below = rule.argmax, rule.stop_below

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        verdict = self._rule.verify(draft, target, noise)
        self._watch(draft, target, verdict)
        return verdict
