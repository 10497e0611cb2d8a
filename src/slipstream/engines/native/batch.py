"""All rows under way, and the step that moves every one of them: schedule, draft, score, verify, commit, publish.

Rows join and leave at any step, each advances by what was accepted of its own draft, and rows of different drafters,
rules, depths and parameters share one pass of the target. What goes wrong with one row ends that row alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import torch

from slipstream.core import sampling
from slipstream.core.interfaces import Drafter, Model, Policy, Verifier
from slipstream.core.loop import check_fits, read, within_limits
from slipstream.core.noise import CounterNoise
from slipstream.core.shapes import Tensor
from slipstream.core.shaping import places, shape
from slipstream.core.types import Budget, Draft, Row, Scores, Verdict
from slipstream.drafters.none import NoDrafter
from slipstream.engines.base import Logprob, Tally
from slipstream.engines.native.groups import Group, join, merge, part, slots
from slipstream.engines.native.job import Job
from slipstream.engines.native.scheduler import Limits, Scheduler


class Batch:
    def __init__(
        self,
        model: Model,
        drafter: Callable[[str], Drafter],
        rule: Callable[[str], Verifier],
        policy: Policy,
        limits: Limits,
    ) -> None:
        self.model, self.policy = model, policy
        self._drafter, self._rule = drafter, rule
        self.scheduler = Scheduler(limits, model.context)
        self.tally = Tally()
        self.failures: dict[str, int] = {}

    def add(self, job: Job) -> None:
        check_fits(job.row, self.model)
        self.scheduler.check(job)
        if job.done:
            job.end("length")
            return
        self._drafter(job.course.drafter), self._rule(job.course.rule)  # an unknown name is refused here
        self.scheduler.waiting.append(job)

    def step(self) -> bool:
        """One cycle for every row that is ready; False where there was nothing to do."""
        groups = self.schedule()
        if groups:
            started = time.perf_counter()
            drafts = self.draft(groups)
            drafted = time.perf_counter()
            scores = self.score(groups, drafts)
            if scores is not None:
                scored = time.perf_counter()
                verdicts, broken = self.verify(groups, drafts, scores)
                self.commit(groups, drafts, verdicts, scores)
                self.publish(groups, drafts, verdicts, scores, broken)
                self.policy.price(drafted - started, scored - drafted, len(scores.logits))
        return bool(groups or self.scheduler.running or self.scheduler.waiting)

    def schedule(self) -> list[Group]:
        """Let go of who is done or cancelled, admit who fits, read a piece of long prompts; the rows that are ready."""
        plan = self.scheduler
        for job in [*plan.running, *plan.waiting]:
            if job.cancelled and not job.done:
                job.end("cancelled")
        plan.waiting = type(plan.waiting)(job for job in plan.waiting if not job.done)
        self._close(plan.leave())
        for job in plan.admit():
            self._guard(job, lambda job=job: self._open(job))
        self._close(plan.leave())
        ready = sorted(self._prefill(plan.running), key=_course)
        return [
            Group(list(jobs), self._drafter(drafter), self._rule(rule))
            for (drafter, rule), jobs in groupby(ready, key=_course)
        ]

    def _open(self, job: Job) -> None:
        self.model.open([job.row])
        self._drafter(job.course.drafter).open([job.row])

    def _close(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._drafter(job.course.drafter).close([job.row])
            self.model.close([job.row])

    def _prefill(self, jobs: Sequence[Job]) -> list[Job]:
        """Long prompts are read a piece a step beside the others' decoding; the last piece rides in the score pass."""
        limit = self.scheduler.limits.prefill
        long = [job for job in jobs if len(job.row.request.prompt) - job.prefilled > limit]
        for job in long:
            self._guard(job, lambda job=job: _count(job, self.model.prefill([job.row], limit)[0]))
        return [job for job in jobs if job not in long and not job.done]

    def draft(self, groups: Sequence[Group]) -> list[Draft]:
        free = [job.row for group in groups for job in group.jobs if job.course.depth is None]
        chosen = dict(zip(free, self.policy.budget(free), strict=True)) if free else {}
        drafts = []
        for group in groups:
            rows = [job.row for job in group.jobs]
            wanted = [chosen.get(job.row) or Budget(job.course.depth or 0) for job in group.jobs]
            budget = within_limits(wanted, rows, self.model.context)
            drafts.append(self._propose(group, rows, budget))
        return drafts

    def _propose(self, group: Group, rows: Sequence[Row], budget: Sequence[Budget]) -> Draft:
        """A drafter that fails costs its rows the draft of this cycle, never the request."""
        noise = CounterNoise(rows, [group.rule.shared] * len(rows))
        try:
            return group.drafter.propose(rows, budget, noise)
        except Exception as error:
            self._note(f"drafter: {error}")
            return NoDrafter(self.model.vocab).propose(rows, budget, noise)

    def score(self, groups: Sequence[Group], drafts: Sequence[Draft]) -> Scores | None:
        jobs = [job for group in groups for job in group.jobs]
        try:
            return self.model.score([job.row for job in jobs], merge(drafts, self.model.vocab))
        except Exception as error:
            self._note(f"score: {error}")
            alone = NoDrafter(self.model.vocab)
            for job in jobs:  # whoever fails alone as well is the one; the others try again in the next step
                self._guard(job, lambda row=job.row: self.model.score([row], alone.propose([row], [], CounterNoise([row], [False]))))
            if not any(job.done for job in jobs):
                for job in jobs:
                    job.end("error", f"the model failed on the batch: {error}")
            return None

    def verify(
        self, groups: Sequence[Group], drafts: Sequence[Draft], scores: Scores
    ) -> tuple[list[Verdict], dict[Job, str]]:
        verdicts, broken = [], {}
        for group, draft, index in zip(groups, drafts, slots(drafts), strict=True):
            rows = [job.row for job in group.jobs]
            where = places(rows, draft.tree, draft.token.tolist())
            logits, dead = lawful(shape(part(scores, index).logits, where))
            law = sampling.law(logits, [row.request.sampling for row, _ in where])
            noise = CounterNoise(rows, [group.rule.shared] * len(rows))
            verdict = group.rule.verify(draft, law, noise)
            verdicts.append(verdict)
            broken |= self._broken(group, draft, verdict, dead, index, scores)
        return verdicts, broken

    def _broken(
        self, group: Group, draft: Draft, verdict: Verdict, dead: set[int], index: Tensor, scores: Scores
    ) -> dict[Job, str]:
        """Rows that reached a slot without a law, and why there is none."""
        found = {}
        for r, (job, path) in enumerate(zip(group.jobs, verdict.path.tolist(), strict=True) if dead else ()):
            reached = dead & {r, *(draft.tree.rows + i for i in path if i >= 0)}
            if reached:
                raw = scores.logits[int(index[min(reached)])]
                finite = bool(raw.amax().isfinite())
                found[job] = (
                    "the grammar and the banned tokens leave nothing to go on with"
                    if finite
                    else "the model's logits are not finite"
                )
        return found

    def commit(
        self, groups: Sequence[Group], drafts: Sequence[Draft], verdicts: Sequence[Verdict], scores: Scores
    ) -> None:
        self.model.commit([job.row for group in groups for job in group.jobs], join(verdicts, drafts))
        for group, draft, verdict, index in zip(groups, drafts, verdicts, slots(drafts), strict=True):
            rows = [job.row for job in group.jobs]
            try:
                group.drafter.observe(rows, verdict, part(scores, index))
            except Exception as error:
                self._note(f"drafter: {error}")
            self.policy.observe(rows, draft, verdict)

    def publish(
        self,
        groups: Sequence[Group],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        scores: Scores,
        broken: Mapping[Job, str],
    ) -> None:
        for group, draft, verdict, index in zip(groups, drafts, verdicts, slots(drafts), strict=True):
            for r, (job, news) in enumerate(zip(group.jobs, read(draft, verdict), strict=True)):
                if job in broken:
                    job.end("error", broken[job])
                    continue
                kept = job.row.extend(news.tokens, news.origins, self.model.context)
                accepted = min(kept, len(news.path))
                for tally in (job.tally, self.tally):
                    tally.add(news.drafted, accepted, kept)
                where = [int(index[slot]) for slot in (r, *(draft.tree.rows + i for i in news.path))][:kept]
                logprobs = [] if job.top is None else tops(scores.logits[where], news.tokens[:kept], job.top)
                job.take(news.tokens[:kept], news.origins[:kept], logprobs)

    def _guard(self, job: Job, act: Callable[[], object]) -> None:
        """An exception ends this job alone."""
        try:
            act()
        except Exception as error:
            job.end("error", str(error))

    def _note(self, what: str) -> None:
        self.failures[what] = self.failures.get(what, 0) + 1


def _course(job: Job) -> tuple[str, str]:
    return job.course.drafter, job.course.rule


def _count(job: Job, fed: int) -> None:
    job.prefilled += fed or len(job.row.request.prompt)


def lawful(logits: Tensor) -> tuple[Tensor, set[int]]:
    """Logits every row of which has a law, and the slots that had none; whoever reaches one of these has failed."""
    dead = ~logits.amax(-1).isfinite()
    if not bool(dead.any()):
        return logits, set()
    return logits.masked_fill(dead[:, None], 0.0), set(dead.nonzero()[:, 0].tolist())


def tops(logits: Tensor, tokens: Sequence[int], n: int) -> list[Logprob]:
    """Log-probabilities of emitted tokens under the target's own distribution, with the n likeliest."""
    logprobs = logits.float().log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    best = logprobs.topk(n, sorted=True)
    pairs = [tuple(zip(i, v, strict=True)) for i, v in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return [Logprob(token, value, top) for token, value, top in zip(tokens, own, pairs, strict=True)]
