"""A captured cycle that drafts chains: draft, score, verify and commit as one graph, then one small read.

What it must equal is `Batch`'s own cycle, token for token: the same laws, the same rules, the same noise. The host says
how long each row is and how far it may draft, and learns what was accepted; nothing else crosses over in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache

import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.core.device import DeviceProcessor, DeviceVerdict, GraphKey
from slipstream.core.noise import Purpose
from slipstream.drafters.device.interface import DeviceDraft, DraftSteps
from slipstream.engines.native.captured.parts import CapturedCycle, CycleInputs, PendingRecord, ScorePass
from slipstream.engines.native.captured.result import CycleResult, told_chains
from slipstream.kernels.gpu.cycle import commit, lay
from slipstream.kernels.gpu.decoder import Held
from slipstream.kernels.gpu.logprobs import LogprobBuffers
from slipstream.kernels.gpu.lossy.verdict import LossyVerdict
from slipstream.kernels.gpu.sample import LawBuffers, choose, draft
from slipstream.kernels.gpu.truncate import cut
from slipstream.kernels.gpu.verify import judge, match, surplus_room
from slipstream.models.run.gpu.graphs import capture
from slipstream.models.run.gpu.passes import GpuPasses


class ChainCycle:
    """The buffers of one kind of cycle, and its graph."""

    def __init__(
        self,
        key: GraphKey,
        target: GpuPasses,
        held: Held,
        draft: DeviceDraft,
        processor: DeviceProcessor | None = None,
    ) -> None:
        """`processor`: shapes the laws of draft and target, and records log-probabilities in place of the cycle."""
        self.key, self._draft = key, draft
        self._spare = 0 if key.rule.needs_draft else 1  # tokens that a cycle may emit beyond those it drafts
        rows, width, device = key.rows, key.depth + 1, target.like.device
        self._inputs = CycleInputs(rows, device)
        self._scoring = ScorePass(target, held, draft, rows, width, key.parts)
        self._chance = torch.zeros(max(1, key.depth), rows, device=device)
        self._credit = surplus_room(rows, key.depth, self._scoring.laws)
        self._result = torch.zeros(rows, 2 * width + 2, dtype=torch.float64, device=device)
        self._shaping = processor.device_form(rows, width, target.vocab, device) if processor else None
        self._logprobs = None
        if key.logprobs is not None and processor is None:
            ready = key.rule.greedy or key.rule.argmax  # no temperature, and nothing is truncated
            self._logprobs = LogprobBuffers(self._scoring.laws, width, key.logprobs, ready)
        columns = width if processor else self._logprobs.columns if self._logprobs else 0
        self._record = self._result.new_zeros(rows, self._result.shape[1] + columns) if columns else self._result
        self._reading = draft.committed_read(rows, width, key.parts, target.like)
        self.state = self._reading.state
        self._host_tokens = self._scoring.token.new_zeros(rows, key.depth)
        if draft.on_host:
            self._chance.fill_(1.0)
        self._steps = draft.steps(rows, key.depth, key.parts, self.state) if key.depth else None
        if self._steps is not None:
            assert draft.ids is not None, "steps come with a vocabulary"
            self._drafts = LawBuffers(rows * key.depth, len(draft.ids), device)
        self._lossy = None
        if key.rule.lossy is not None and key.depth:
            drafts = None if self._steps is None else self._drafts
            self._lossy = LossyVerdict(key.rule.lossy, self._scoring.laws, drafts, draft.slot_of, width)
        self.whole = CapturedCycle(self._all, self._record)

    @property
    def repeats(self) -> bool:
        """Whether the next cycle of the same rows needs nothing from the host."""
        return not self._draft.on_host

    @property
    def columns(self) -> int:
        """Numbers of each row in the record that the host reads: accepted, next token, whether all had a law, drafted,
        and the drafted tokens. Their chances follow."""
        return 4 + self.key.depth

    @property
    def logprobs(self) -> int | None:
        """The first column of the emitted tokens' log-probabilities in the record; None if it has none."""
        return None if self._record is self._result else self._result.shape[1]

    def with_logprobs(self, result: CycleResult, numbers: list[float]) -> CycleResult:
        """A row's result with the log-probabilities of its record, from column `logprobs` on."""
        if self._logprobs is None:
            return result._replace(logprobs=numbers)
        own, top = self._logprobs.read(numbers)
        return result._replace(logprobs=own, top_logprobs=top)

    def load_shaping(self, state: Sequence[Sequence[int]]) -> None:
        """Set the processor's integers of each row."""
        if self._shaping is not None:
            columns = torch.tensor(state).T
            self._shaping.state[:, : columns.shape[1]].copy_(columns, non_blocking=True)

    def launch(
        self, words: Sequence[Sequence[int]], numbers: Sequence[Sequence[float]], state: Tensor | None
    ) -> PendingRecord:
        """One cycle; `state` is what the head gave at the last slot of each row, where this is not what the last cycle
        left, or what the host drafted."""
        self._inputs.load(words, numbers)
        if state is not None:
            target = self._host_tokens if self._draft.on_host else self.state
            target[: len(state)].copy_(state)
        return self.whole.launch()

    def follows(self, before: object) -> bool:
        """Whether it can be launched after another cycle of the same rule whose record was not read yet."""
        if not isinstance(before, ChainCycle) or before is self or not (before.repeats and self.repeats):
            return False
        return self._shaping is None and (before.key.depth > 0 or not self.key.depth)

    def launch_after(self, before: ChainCycle, lines: Sequence[int], depth: int) -> PendingRecord:
        """One cycle after another one that it `follows`. `lines`: of the rows there; all of them draft up to `depth`
        tokens from now on."""
        line = _indices((*lines, *[-1] * (self.key.rows - len(lines))), self._result.device)
        self._inputs.take_over(before._inputs, line, depth, self._spare)
        torch.index_select(before.state, 0, line[: len(lines)], out=self.state[: len(lines)])
        return self.whole.launch()

    def load_rows(self, rows: int, length: int, temperature: float) -> None:
        """Set the inputs to so many rows of `length` committed tokens in the first places of the caches. For
        measurements while no request is under way."""
        inputs, lines, depth = self._inputs, range(self.key.rows), self.key.depth
        live = [line < rows for line in lines]
        words = {name: [0] * self.key.rows for name in (field.name for field in fields(inputs.control))}
        places = [line if own else 0 for line, own in zip(lines, live, strict=True)]
        words |= {"row": places, "head_row": places, "start": [length if own else 1 for own in live]}
        words |= {"depth": [depth if own else -1 for own in live], "goal": [depth if own else 0 for own in live]}
        words["left"] = [1 << 20 if own else 0 for own in live]
        numbers = {"temperature": temperature, "stop_below": 0.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
        inputs.load(list(words.values()), [[value] * self.key.rows for value in numbers.values()])

    def parts(self, names: Sequence[str]) -> dict[str, Callable[[], None]]:
        """Stretches of the cycle that may be repeated one by one: draft, score and verify. They change neither rows nor
        control."""

        def drafting() -> None:
            self._first()
            self._reading.run(self._scoring.stack)

        runs = {"draft": drafting, "score": self._score, "verify": self._verify}
        return {name: capture(runs[name]) if self._result.is_cuda else runs[name] for name in names}

    def told(self, record: Sequence[list[int]]) -> list[CycleResult]:
        return told_chains(record, self.key.rule.needs_draft)

    def _all(self) -> None:
        self._first()
        self._second()

    def _first(self) -> None:
        scoring, inputs = self._scoring, self._inputs
        lay(inputs.control, scoring.token, inputs.far, scoring.layout)
        if self._draft.on_host:
            scoring.token[:, 1:].copy_(self._host_tokens)
        elif self._steps is not None:
            self._draft_chain(self._steps)

    def _second(self) -> None:
        scoring, inputs, reading = self._scoring, self._inputs, self._reading
        self._score()
        if self._shaping is not None:
            self._shaping.restrict(scoring.laws.logits, scoring.token, inputs.control, self.key.depth + 1, 0, True)
        if self._logprobs is not None:
            self._logprobs.survey(scoring.token)
        if self.key.cut:
            cut(scoring.laws.logits, inputs.sampling)
        self._verify()
        logprobs = self._record[:, self._result.shape[1] :]
        if self._shaping is not None:
            self._shaping.advance(scoring.laws.logits, scoring.token, scoring.verdict, logprobs)
        if self._logprobs is not None:
            self._logprobs.write(scoring.token, scoring.verdict, logprobs)
        commit(
            *(inputs.control, inputs.far, scoring.token, scoring.verdict, self._chance, reading.following),
            *(reading.layout, reading.end, self._result, self._spare),
        )
        if self._record is not self._result:
            self._record[:, : self._result.shape[1]].copy_(self._result)
        reading.run(scoring.stack)

    def _score(self) -> None:
        self._scoring.run(tree=False, states=self._draft.resumed(self._steps))

    def _draft_chain(self, steps: DraftSteps) -> None:
        rows, depth, token = self.key.rows, self.key.depth, self._scoring.token
        purpose = Purpose.FIELD if self.key.rule.shared else Purpose.DRAFT
        steps.begin(self._inputs.control)
        for n in range(depth):
            laws = self._drafts.section(n * rows, rows)
            steps.run(n, token, laws.logits)
            if self._shaping is not None:
                self._shaping.restrict(laws.logits, token, self._inputs.control, 1, n, recorded=False)
            if self.key.cut:
                cut(laws.logits, self._inputs.sampling)
            ids = self._draft.ids
            race = not self.key.rule.argmax
            draft(laws, self._inputs.sampling, token[:, n + 1 :], depth + 1, n, purpose, self._chance[n], ids, race)

    def _verify(self) -> None:
        rule, width, scoring, sampling = self.key.rule, self.key.depth + 1, self._scoring, self._inputs.sampling
        drafted = width > 1 and (self._draft.on_host or self._steps is not None)
        if rule.verdict is DeviceVerdict.MATCH or not drafted:  # the target's own choice at each slot decides
            purpose = Purpose.FIELD if rule.shared else Purpose.EMIT
            choose(scoring.laws, sampling, scoring.choice, width, purpose, race=not (rule.greedy or rule.argmax))
            match(scoring.choice, scoring.token, sampling, scoring.laws.best, scoring.verdict)
            return
        drafts = None if self._steps is None else self._drafts
        choose(scoring.laws, sampling, scoring.choice, width, Purpose.EMIT, race=False)
        if self._lossy is not None:
            self._lossy.run(scoring.token, scoring.choice, self._chance, sampling, scoring.verdict)
            return
        judge(
            *(scoring.laws, drafts, self._chance, scoring.token, scoring.choice, sampling, self._draft.slot_of),
            *(self._credit, rule.verdict is DeviceVerdict.BLOCK, scoring.verdict),
        )


@lru_cache(maxsize=256)
def _indices(lines: tuple[int, ...], device: torch.device) -> Int[Tensor, " lines"]:
    return torch.tensor(lines).to(device, non_blocking=True)
