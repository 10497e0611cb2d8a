"""Phases of the ordinary host loop: a quick counter (RAPL), or a stated power, is read between them in real cycles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from slipstream.bench.measure.energy import Meter
from slipstream.bench.measure.phase_energy import PHASES, EnergyByPhase, PhaseLoad, PhasePower, WholeRun, by_phase
from slipstream.bench.workloads import Item
from slipstream.core.interfaces import Drafter, Model, Verifier
from slipstream.core.loop import advance, decode, rule_noise, target_law, within_limits
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.build import build_drafter
from slipstream.drafters.none import NoDrafter
from slipstream.models.target import Target
from slipstream.plan.policy.policies import Fixed


def host_phases(
    target: Target, load: PhaseLoad, items: Sequence[Item], meter: Meter, idle: float | None
) -> EnergyByPhase:
    """Joules per token by phase, from cycles of the loop in `core`. Plain decoding and drafting take turns, so that a
    slow moment of the machine hits both; so do cycles phase by phase and whole runs."""
    rule = rules.make("greedy" if load.temperature == 0 else "block")
    prompts = [target.text.encode(item.turns[0], raw=item.raw) for item in items]
    drafters = {0: NoDrafter(target.model.vocab), load.depth: build_drafter(load.drafter, target, dict(load.options))}
    loops = {depth: PhaseLoop(target.model, own, rule, depth, meter) for depth, own in drafters.items()}
    for loop in loops.values():
        loop.whole(_rows(load, prompts))  # a warm-up
        loop.clear()
    began = time.perf_counter()
    while time.perf_counter() - began < 4 * load.seconds:
        for loop in loops.values():
            loop.by_phase(_rows(load, prompts))
            loop.whole(_rows(load, prompts))
    plain, drafted = loops[0], loops[load.depth]
    score_one = plain.clock.phases()["score"].joules
    source = meter.source.name, meter.source.estimate
    return by_phase(drafted.clock.phases(), score_one, drafted.run, plain.run, idle, load.about, source)


def _rows(load: PhaseLoad, prompts: Sequence[Sequence[int]]) -> list[Row]:
    sampling = Sampling(load.temperature)
    return [Row(Request(prompts[n % len(prompts)], sampling, load.max_tokens)) for n in range(load.batch)]


class PhaseLoop:
    """Cycles of one depth: phase by phase, and as whole runs. Passes over prompts are not counted."""

    def __init__(self, model: Model, drafter: Drafter, rule: Verifier, depth: int, meter: Meter) -> None:
        self._model, self._drafter, self._rule, self._depth, self._meter = model, drafter, rule, depth, meter
        self.clear()

    def clear(self) -> None:
        """Forget what was measured."""
        self.clock, self.run = PhaseClock(self._meter), WholeRun(0.0, 0.0, 0, 0)
        self._accepted = self._row_cycles = 0

    def whole(self, rows: Sequence[Row]) -> None:
        decoding = decode(rows, self._model, self._drafter, self._rule, Fixed(self._depth))
        next(decoding)  # the prompts' pass
        first, cycles, run = sum(row.emitted for row in rows), 0, self.run
        with self._meter.window() as window:
            for steps in decoding:
                cycles, self._row_cycles = cycles + 1, self._row_cycles + len(steps)
                self._accepted += sum(step.accepted for step in steps)
        tokens = sum(row.emitted for row in rows) - first
        self.run = WholeRun(
            run.joules + window.joules, run.seconds + window.seconds, run.tokens + tokens, run.cycles + cycles,
            self._accepted / max(1, self._row_cycles),
        )  # fmt: skip

    def by_phase(self, rows: Sequence[Row]) -> None:
        """The loop of `core.loop.decode`, with the counter read between phases."""
        model, drafter, everyone = self._model, self._drafter, rows
        model.open(rows)
        drafter.open(rows)
        first = True
        try:
            while rows := [row for row in rows if row.finish_reason is None]:
                self._cycle(rows, PhaseClock(self._meter) if first else self.clock)
                first = False
        finally:
            drafter.close(everyone)
            model.close(everyone)

    def _cycle(self, rows: Sequence[Row], clock: PhaseClock) -> None:
        model, drafter, rule = self._model, self._drafter, self._rule
        clock.start()
        budget = within_limits([Budget(self._depth)] * len(rows), rows, model.context, None, rule)
        noise = rule_noise(rule, CounterNoise(rows, [rule.shared] * len(rows)))
        clock.end("host")
        draft = drafter.propose(rows, budget, noise)
        clock.end("draft")
        scores = model.score(rows, draft)
        clock.end("score")
        draft = draft.to(scores.logits.device)
        verdict = rule.verify(draft, target_law(rows, draft, scores), noise)
        clock.end("verify")
        model.commit(rows, verdict)
        drafter.observe(rows, verdict, scores)
        advance(rows, draft, verdict, model.context)
        clock.end("host")
        clock.cycles += 1


class PhaseClock:
    """Adds up the seconds and joules of phases, which follow each other."""

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.perf_counter) -> None:
        self._read, self._clock = meter.source.read, clock
        self._spent = {name: [0.0, 0.0] for name in PHASES}
        self.cycles = 0
        self._last = 0.0, 0.0

    def start(self) -> None:
        self._last = self._clock(), self._read()

    def end(self, phase: str) -> None:
        """A phase is over, and the next one begins."""
        now = self._clock(), self._read()
        for i in range(2):
            self._spent[phase][i] += now[i] - self._last[i]
        self._last = now

    def phases(self) -> dict[str, PhasePower]:
        cycles = max(1, self.cycles)
        return {
            name: PhasePower(joules / seconds if seconds else 0.0, seconds / cycles)
            for name, (seconds, joules) in self._spent.items()
        }
