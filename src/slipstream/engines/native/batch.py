"""All rows under way, and the step that moves every one of them: schedule, decide, draft, score, verify, commit,
publish; or all of it on the device (`captured`).

Rows join and leave at any step, each advances by what was accepted of its own draft, and rows of different drafters,
rules, depths and parameters share one pass of the target. What goes wrong with one row harms that row alone: a drafter
that fails on it is taken away from it, a pass that fails is tried again on halves of its rows, and a row that reaches a
place without a law ends there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from slipstream.core.interfaces import Drafter, Model, Policy, Verifier
from slipstream.core.loop import NoiseFactory, check_fits, read, rule_noise
from slipstream.core.shaping import places
from slipstream.core.types import Budget, Draft, RowOutcome, Scores, Verdict
from slipstream.drafters.none import empty_draft
from slipstream.engines.checks import check_token_ids
from slipstream.engines.completion import DraftedTree
from slipstream.engines.job import Job
from slipstream.engines.logprobs import token_logprobs
from slipstream.engines.native.captured.rows import CapturedRows
from slipstream.engines.native.cycle_runs import CycleRuns
from slipstream.engines.native.groups import Group, drafted_tree, join, levels, limited, merge, part, slots
from slipstream.engines.native.laws import check_tree, law_of
from slipstream.engines.native.prompts.reader import PromptReader
from slipstream.engines.native.prompts.scorer import PromptScorer
from slipstream.engines.native.publisher import ChunkPublisher
from slipstream.engines.native.scheduler import CPU, Limits, Scheduler
from slipstream.kernels.cpu.race import KernelNoise

if TYPE_CHECKING:
    from slipstream.engines.native.captured.runner import CapturedRunner

T = TypeVar("T")
FAILED = {"draft": "the request could not be drafted for", "score": "the model failed", "verify": "verification failed"}


class Batch:
    """`drafter` and `rule` give the part of a name; "none" must be among the drafters."""

    def __init__(
        self,
        model: Model,
        drafter: Callable[[str], Drafter],
        rule: Callable[[str], Verifier],
        policy: Policy,
        limits: Limits,
        make_noise: NoiseFactory = KernelNoise,
        runner: CapturedRunner | None = None,
    ) -> None:
        self.model, self.policy = model, policy
        self._drafter, self._rule, self._make_noise = drafter, rule, make_noise
        self.scheduler = Scheduler(limits, model.context, CPU if runner is None else runner.limits)
        model.bound(self.scheduler.tokens)
        self.publisher = ChunkPublisher()
        self.failures: dict[str, int] = {}
        self.captured = CapturedRows(runner, policy, drafter, rule, model.context, self.publisher, self._note)
        self._runs = CycleRuns(model, policy, rule, drafter, make_noise, self.publisher, self._note)
        self._prompt_scorer = PromptScorer(model, self.scheduler.chunk, runner is not None)
        self._prompts = PromptReader(model, self.scheduler.chunk, self._note)

    def check(self, job: Job) -> None:
        """Refuse what could never run; safe from any thread."""
        check_fits(job.row, self.model.vocab, self.model.context)
        self.model.check(job.row)
        check_token_ids(job.row.request, self.model.vocab)
        self.scheduler.check(job)
        # an unknown name is refused here
        drafter, rule = self._drafter(job.plan.drafter), self._rule(job.plan.rule)
        if job.plan.shape is not None:
            check_tree(job.plan.shape, rule, drafter, self.model)
        if rule.greedy and job.row.request.sampling.temperature != 0:
            raise ValueError("the greedy rule needs temperature 0; use token, block or coupled for sampling")

    def add(self, job: Job) -> None:
        """Queue a job that was checked."""
        if job.done and not job.unscored:
            job.end("length")
        else:
            job.row.finish_reason = None  # one that emits nothing ends when its prompt is scored
            self.scheduler.waiting.append(job)

    def step(self) -> bool:
        """One cycle for every row that is ready; False where there was nothing to do."""
        if (live := self._undisturbed()) and self.captured.go_on(live):
            self._close(self.scheduler.leave())
            return True
        ready = self.schedule()
        others = self.captured.run(ready, self.scheduler.expected_rows)
        if others or not ready:
            self.publisher.catch_up()
        if others:
            self.decide(others)
            if not self._runs.run(others, self.decide):
                self._cycle(others)
        return bool(ready or self.scheduler.running or self.scheduler.waiting)

    def _undisturbed(self) -> list[Job]:
        """The rows of a captured cycle that is under way, if these are all rows, and nobody comes or was cancelled."""
        plan, live = self.scheduler, self.captured.live()
        if not live or len(live) < len(plan.running) or plan.admits():
            return []
        cancelled = any(job.cancelled for job in live) or any(job.cancelled for job in plan.waiting)
        return [] if cancelled else live

    def _cycle(self, jobs: Sequence[Job]) -> None:
        usual = all(job.stats.cycles for job in jobs)  # nobody reads a prompt, so the times tell what a cycle costs
        started = time.perf_counter()
        phase = "draft"
        try:
            groups, drafts = self.draft(jobs)
            phase, drafted = "score", time.perf_counter()
            scores = self.score(groups, drafts)
            phase = "verify"
            verdicts, dead = self.verify(groups, drafts, scores)
        except MemoryError as error:  # the rows go on when the last one has given its places back
            if not self._wait(self.scheduler.running[1:][-1:]):
                jobs[0].end("error", str(error))
            return
        except Exception as error:
            self._blame(jobs, phase, error)
            return
        self.commit(groups, drafts, verdicts, scores)
        self.publish(groups, drafts, verdicts, scores, dead)
        if usual:  # a drafted token costs its law, its verdict and its place in the cache as well as its score
            self.policy.price(drafted - started, time.perf_counter() - drafted, len(scores.logits))

    def schedule(self) -> list[Job]:
        """Let go of who is done or cancelled, admit who fits, read a piece of long prompts; the rows that are ready."""
        plan = self.scheduler
        self.captured.land()
        if any(job.cancelled for job in plan.running):  # what they are owed comes before their end
            self.publisher.catch_up()
        for job in [*plan.running, *plan.waiting]:
            if job.cancelled and not job.done:
                job.end("cancelled")
        self._close(plan.leave())
        self._preempt()
        self._admit()
        self._close(plan.leave())
        ready = self._prompts.read(self._prompt_scorer.step(plan.running))
        ahead = [job for job in ready if job.unread > 1 and self.captured.suits(job)]
        self._prompts.read_ahead(ahead)  # so that they ride from their first token on
        self.captured.fresh = {job.row for job in ahead}
        for job in ready:
            job.budget = job.plan.budget
        return ready

    def _preempt(self) -> None:
        """Take the places of rows that must wait again."""
        if preempted := self.scheduler.preempt():
            self.publisher.catch_up()
            self._close(preempted)
            for job in preempted:
                job.preempt()

    def _admit(self) -> None:
        """Open the rows of jobs that fit. Where running rows have the memory that one needs, it waits with the rest."""
        new, chains_only = self.scheduler.admit(), dict[tuple[str, str], bool]()
        for n, job in enumerate(new):
            with job.blamed():
                try:
                    self._open(job, chains_only)
                except MemoryError:
                    if not self._wait(new[n:]):
                        raise
                    return

    def _wait(self, jobs: Sequence[Job]) -> bool:
        """The KV cache cannot grow: let these jobs wait until the others need less than they do now. False where there
        are no others, or none of these."""
        others = [job for job in self.scheduler.running if job not in jobs]
        if not (jobs and others):
            return False
        self._close([job for job in jobs if job.seated])
        self.scheduler.postpone(jobs)
        self.model.bound(self.scheduler.tokens)
        return True

    def decide(self, jobs: Sequence[Job]) -> None:
        """How far to draft, where a request leaves that to the policy, which is asked even for nobody: it will be told
        what the cycle took."""
        free = [job for job in jobs if job.plan.depth is None]
        for job, budget in zip(free, self.captured.budgets(free), strict=True):
            job.budget = budget

    def _open(self, job: Job, chains_only: dict[tuple[str, str], bool]) -> None:
        """`chains_only`: whether a tree would keep rows from captured cycles, by drafter and rule, as far as known."""
        self.model.open([job.row])
        job.seated = True
        try:
            drafter = self._drafter(job.plan.drafter)
            drafter.open([job.row])
            if (pair := job.drafter_and_rule) not in chains_only:
                chains_only[pair] = self.captured.chains_only(job)
            chains = chains_only[pair] or self._runs.chains_only(job)
            self.policy.open([job.row], self.model, drafter, self._rule(job.plan.rule), chains)
        except Exception as error:
            self._without_drafter(job, error)

    def _close(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.seated:
                self._attempt("policy", self.policy.close, [job.row])
                self._leave_drafter(job)
                self._attempt("model", self.model.close, [job.row])

    def _leave_drafter(self, job: Job) -> None:
        self._attempt("drafter", self._drafter(job.plan.drafter).close, [job.row])

    def _attempt(self, part: str, close: Callable[[T], None], item: T) -> None:
        """Close something. A failure is noted, and does not keep other rows from being closed."""
        try:
            close(item)
        except Exception as error:
            self._note(f"{part}: {error}")

    def _without_drafter(self, job: Job, error: Exception) -> None:
        """A drafter that fails on a row is taken away from it: drafts are worth nothing beside the request."""
        self._note(f"drafter: {error}")
        job.stats.failures += 1
        job.plan = replace(job.plan, drafter="none")

    def draft(self, jobs: Sequence[Job]) -> tuple[list[Group], list[Draft]]:
        """Rows in groups by drafter and rule, and the draft of each group."""
        groups = []
        for (drafter, rule), same in groupby(
            sorted(jobs, key=lambda job: job.drafter_and_rule), key=lambda job: job.drafter_and_rule
        ):
            members, judge = list(same), self._rule(rule)
            noise = rule_noise(judge, self._make_noise([job.row for job in members], [judge.shared] * len(members)))
            groups.append(Group(members, self._drafter(drafter), judge, noise))
        drafts = [self._propose(group) for group in groups]
        whole = [draft for draft in drafts if draft is not None]
        return (groups, whole) if len(whole) == len(groups) else self.draft(jobs)

    def _propose(self, group: Group) -> Draft | None:
        """None where the drafter failed: the rows it fails on by themselves go on without it, or all if it is none."""
        try:
            return self._proposed(group, group.jobs)
        except Exception as error:
            failing = [job for job in group.jobs if not self._drafts_alone(group, job)] or group.jobs
            for job in failing:
                self._leave_drafter(job)
                self._without_drafter(job, error)
            return None

    def _drafts_alone(self, group: Group, job: Job) -> bool:
        noise = rule_noise(group.rule, self._make_noise([job.row], [group.rule.shared]))
        try:
            self._proposed(replace(group, noise=noise), [job])
        except Exception:
            return False
        return True

    def _proposed(self, group: Group, jobs: Sequence[Job]) -> Draft:
        if group.asleep:
            return empty_draft(len(jobs), self.model.vocab)
        budget = limited(jobs, group.rule, group.drafter, self.model.context)
        return group.drafter.propose([job.row for job in jobs], budget, group.noise)

    def score(self, groups: Sequence[Group], drafts: Sequence[Draft]) -> Scores:
        return self.model.score([job.row for group in groups for job in group.jobs], merge(drafts, self.model.vocab))

    def _blame(self, jobs: Sequence[Job], phase: str, error: Exception) -> None:
        """A cycle failed before anything was committed. Halves of its rows are tried by themselves, down to the one
        that fails alone and undrafted. Draws depend on the row and its length, so the other rows repeat theirs."""
        self._note(f"{phase}: {error}")
        if len(jobs) > 1:
            self._cycle(jobs[: len(jobs) // 2])
            self._cycle(jobs[len(jobs) // 2 :])
        elif jobs[0].budget.depth:
            jobs[0].budget = Budget(0)
            self._cycle(jobs)
        else:
            jobs[0].end("error", f"{FAILED[phase]}: {error}")

    def verify(
        self, groups: Sequence[Group], drafts: Sequence[Draft], scores: Scores
    ) -> tuple[list[Verdict], list[dict[int, str]]]:
        """The verdict of each group, and its slots that had no law, with the reason."""
        verdicts, lawless = [], []
        for group, draft, index in zip(groups, drafts, slots(drafts), strict=True):
            where = places([job.row for job in group.jobs], draft.tree, draft.token.tolist())
            law, dead = law_of(part(scores, index).logits, where)
            verdicts.append(group.rule.verify(draft.to(scores.logits.device), law, group.noise))
            lawless.append(dead)
        return verdicts, lawless

    def commit(
        self, groups: Sequence[Group], drafts: Sequence[Draft], verdicts: Sequence[Verdict], scores: Scores
    ) -> None:
        self.model.commit([job.row for group in groups for job in group.jobs], join(verdicts, drafts))
        for group, draft, verdict, index in zip(groups, drafts, verdicts, slots(drafts), strict=True):
            rows = [job.row for job in group.jobs]
            try:
                if not group.asleep:
                    group.drafter.observe(rows, verdict, part(scores, index))
            except Exception as error:
                self._note(f"drafter: {error}")
            self.policy.observe(rows, draft, verdict)

    def publish(
        self,
        groups: Sequence[Group],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        scores: Scores | None,
        lawless: Sequence[Mapping[int, str]],
    ) -> None:
        """Hand out what each row emitted: up to a place without a law, where the request ends. Scores are asked for by
        requests that want to know what else was likely."""
        for group, draft, verdict, dead, index in zip(groups, drafts, verdicts, lawless, slots(drafts), strict=True):
            drafted = levels(draft.tree)
            for r, (job, news) in enumerate(zip(group.jobs, read(draft, verdict), strict=True)):
                reached = [r, *(draft.tree.rows + i for i in news.path)]
                sound = next((n for n, slot in enumerate(reached) if slot in dead), len(reached))
                with job.blamed():
                    if sound:
                        said = None if scores is None or job.top is None else part(scores, index[reached[:sound]])
                        shown = None if job.top is None else drafted_tree(draft, r, news.path)
                        self._emit(job, news, sound, drafted[r], said, shown)
                if sound < len(reached) and not job.done:
                    job.end("error", dead[reached[sound]])

    def _emit(
        self,
        job: Job,
        news: RowOutcome,
        count: int,
        drafted: Sequence[int],
        said: Scores | None,
        shown: DraftedTree | None = None,
    ) -> None:
        kept = job.row.extend(news.tokens[:count], news.origins[:count], self.model.context)
        tokens, origins = news.tokens[:kept], news.origins[:kept]
        logprobs = [] if said is None or job.top is None else token_logprobs(said.logits[:kept], tokens, job.top)
        self.publisher.publish(job, tokens, origins, logprobs, len(news.path), drafted, shown)

    def fail(self, error: Exception) -> None:
        """Something broke that is nobody's fault: end who is under way, keep who waits."""
        self._note(str(error))
        self.captured.drop()
        self.publisher.catch_up()
        for job in self.scheduler.running:
            job.end("error", f"the engine failed: {error}")

    def _note(self, failure: str) -> None:
        self.failures[failure] = self.failures.get(failure, 0) + 1
