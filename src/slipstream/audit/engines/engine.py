"""The audit of any engine through its public interface, with speculation on and off.

Two laws are compared. The *reference* is computed here in float32 from the same weights. An engine that runs in
bfloat16 or quantised has a slightly different law of its own. That is a numerical difference and not a bias; it is
measured from the engine's logprobs. Speculation must keep the engine's *own* law. So continuations sampled with
speculation are tested against the engine's own law, if its logprobs give it, and always against the engine's own plain
sampling.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable
from functools import cached_property, partial

import torch

from slipstream.audit.check import Check, Planned
from slipstream.audit.engines import engine_checks as checks
from slipstream.audit.engines.continuations import Continuations
from slipstream.audit.engines.engine_subject import BATCH, LENGTH, EngineSubject

ENGINE_LAYERS = {
    "numerics": "the engine's own next-token laws, from its logprobs, against float32 from the same weights",
    "control": "plain sampling of the engine",
    "sampled": "sampling with speculation, against the engine's own law (exact binomial tails) and its plain sampling",
    "replay": "token for token: speculation on and off at temperature 0, and one seed requested twice",
    "outside": "what cannot be seen through the public interface",
}


class EngineAudit:
    """The checks of one engine, and the samples that several of them share."""

    def __init__(self, subject: EngineSubject, samples: int) -> None:
        self._subject, self._samples = subject, samples

    def plan(self) -> list[Planned[Check]]:
        """All checks in the order in which they run. The unit of cost is a batch of short continuations."""
        subject, sampling = self._subject, self._samples / BATCH
        seeds = [
            Planned(name, partial(self._seed_check, n), 2 if n == 0 else 0) for n, name in enumerate(checks.SEED_CHECKS)
        ]
        return [
            Planned(checks.NUMERICS_CHECK, lambda: checks.numerics(subject, self._tree), 2),
            Planned("plain sampling against its law", self._plain_sampling, sampling),
            Planned("sampling with speculation against its law", self._fast_sampling, sampling),
            Planned("speculation on against off", self._on_and_off, 0),
            Planned(checks.GREEDY_CHECK, lambda: checks.greedy(subject), 2),
            *seeds,
            Planned("not seen from outside", lambda: checks.unseen(subject, self._law, self._samples), 0),
        ]

    def unit_seconds(self) -> float:
        """Seconds for one batch of short continuations without speculation."""
        began = time.perf_counter()
        self._subject.sample(self._subject.plain, BATCH, 2 * self._samples)
        return time.perf_counter() - began

    @cached_property
    def _tree(self) -> Continuations:
        with torch.inference_mode():
            return Continuations.of(self._subject.reference, self._subject.ends, LENGTH, checks.WIDTH)

    @cached_property
    def _reference(self) -> dict[Hashable, float]:
        with torch.inference_mode():
            law = self._tree.joint(self._subject.reference)
        assert law is not None, "the reference knows its law everywhere"
        return law

    @cached_property
    def _own(self) -> dict[Hashable, float] | None:
        return self._tree.joint(self._subject.own)

    @property
    def _law(self) -> dict[Hashable, float]:
        return self._reference if self._own is None else self._own

    @cached_property
    def _plain(self) -> Counter[Hashable]:
        return self._tree.count(self._subject.sample(self._subject.plain, self._samples, 0))

    @cached_property
    def _fast(self) -> tuple[Counter[Hashable], int]:
        """Continuations with speculation, and how many tokens were drafted for them.

        The seeds differ from those of plain sampling: with equal seeds an engine may give the same sample twice.
        """
        before = self._subject.fast.stats["drafted"]
        counts = self._tree.count(self._subject.sample(self._subject.fast, self._samples, self._samples))
        return counts, self._subject.fast.stats["drafted"] - before

    def _plain_sampling(self) -> Check:
        name = "plain sampling against its law"
        return checks.against(name, "control", self._plain, self._law, self._own is not None, self._subject)

    def _fast_sampling(self) -> Check:
        name = "sampling with speculation against its law"
        return checks.against(name, "sampled", self._fast[0], self._law, self._own is not None, self._subject)

    def _on_and_off(self) -> Check:
        counts, drafted = self._fast
        return checks.on_and_off(counts, self._plain, self._reference, drafted, self._subject)

    @cached_property
    def _seed_checks(self) -> list[Check]:
        return list(checks.seeds(self._subject))

    def _seed_check(self, number: int) -> Check:
        return self._seed_checks[number]
