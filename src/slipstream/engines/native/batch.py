"""All rows under way, and the step that moves every one of them: schedule, draft, score, verify, commit, publish.

Rows join and leave at any step, each advances by what was accepted of its own draft, and rows of different drafters,
rules, depths and parameters share one pass of the target. What goes wrong with one row harms that row alone: a drafter
that fails on it is taken away from it, a pass that fails is tried again on halves of its rows, and a row that reaches a
place without a law ends there.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from slipstream.core.interfaces import Drafter, Model, Policy, Verifier, way
from slipstream.core.loop import NoiseFactory, check_fits, read, within_limits
from slipstream.core.shaping import places
from slipstream.core.types import Budget, Draft, News, Row, Scores, Verdict
from slipstream.engines.native.groups import Group, join, levels, merge, part, slots
from slipstream.engines.native.job import Job
from slipstream.engines.native.laws import check_request, check_tree, law_of, tops
from slipstream.engines.native.scheduler import Limits, Scheduler
from slipstream.engines.native.telling import Teller
from slipstream.kernels.cpu_race import KernelNoise
from slipstream.plan.menu import Chooser

if TYPE_CHECKING:
    from slipstream.engines.native.express import Express


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
        express: Express | None = None,
    ) -> None:
        self.model, self.policy = model, policy
        self.choosers: defaultdict[tuple[str, str], Chooser] = defaultdict(Chooser)  # by drafter and rule
        self._drafter, self._rule, self._make_noise, self._express = drafter, rule, make_noise, express
        self.scheduler = Scheduler(limits, model.context, launched=express is not None)
        model.bound(limits.tokens)
        self.teller = Teller()
        self.failures: dict[str, int] = {}
        self._fresh: set[Row] = set()  # who has just read its prompt

    def check(self, job: Job) -> None:
        """Refuse what could never run; safe from any thread."""
        check_fits(job.row, self.model)
        check_request(job.row.request, self.model.vocab)
        self.scheduler.check(job)
        # an unknown name is refused here
        drafter, rule = self._drafter(job.course.drafter), self._rule(job.course.rule)
        if job.course.shape is not None:
            check_tree(job.course.shape, rule, drafter, self.model)
        if job.course.rule == "greedy" and job.row.request.sampling.temperature != 0:
            raise ValueError("the greedy rule needs temperature 0; use token, block or coupled for sampling")

    def add(self, job: Job) -> None:
        """Queue a job that was checked."""
        if job.done:
            job.end("length")
        else:
            self.scheduler.waiting.append(job)

    def step(self) -> bool:
        """One cycle for every row that is ready; False where there was nothing to do."""
        ready = self.schedule()
        if ready:
            self._cycle(ready)
        else:
            self.teller.catch_up()
        return bool(ready or self.scheduler.running or self.scheduler.waiting)

    def _cycle(self, jobs: Sequence[Job]) -> None:
        if self._express is not None and not (jobs := self._by_hand(self._express, jobs)):
            return
        self.teller.catch_up()
        usual = all(job.tally.cycles for job in jobs)  # nobody reads a prompt, so the times tell what a cycle costs
        started = time.perf_counter()
        groups, drafts = self.draft(jobs)
        drafted = time.perf_counter()
        try:
            scores = self.score(groups, drafts)
        except Exception as error:
            self._blame(jobs, error)
            return
        verdicts, dead = self.verify(groups, drafts, scores)
        self.commit(groups, drafts, verdicts, scores)
        self.publish(groups, drafts, verdicts, scores, dead)
        if usual:  # a drafted token costs its law, its verdict and its place in the cache as well as its score
            self.policy.price(drafted - started, time.perf_counter() - drafted, len(scores.logits))

    def _by_hand(self, express: Express, jobs: Sequence[Job]) -> list[Job]:
        """Whoever can has a whole cycle on the device, by drafter and rule; the others."""
        express.crowd = min(len(self.scheduler.running) + len(self.scheduler.waiting), self.scheduler.limits.rows)
        ready = [job for job in jobs if self._goes_whole(job)]
        done: set[Job] = set()
        for _, some in groupby(sorted(ready, key=_course), key=_course):
            alike = list(some)
            done |= {*alike} if self._whole(express, alike) else set()
        return [job for job in jobs if job not in done]

    def _goes_whole(self, job: Job) -> bool:
        """Whether a row's next cycle can run on the device as a whole."""
        return self._suits(job) and self._express is not None and self._express.ready(job.row)

    def _suits(self, job: Job) -> bool:
        """Whether its cycles can, once it has read its prompt."""
        return self._express is not None and job.top is None and self._express.suits(job.row, job.course.rule)

    def _whole(self, express: Express, jobs: Sequence[Job]) -> bool:
        """The whole cycle of rows with one drafter and one rule on the device, where it can be. What is known then goes
        to the rows at once; those who wait for text are told while the device works on the next cycle."""
        started, (name, rule) = time.perf_counter(), _course(jobs[0])
        rows, drafter, chooser = [job.row for job in jobs], self._drafter(name), self.choosers[name, rule]
        free = [job for job in jobs if job.course.depth is None]
        try:
            if free:
                chosen = express.choose([job.row for job in free], drafter, rule, chooser)
                for job in free:
                    job.budget = chosen
            budget = self._limited(jobs, self._rule(rule), drafter)
            quiet = self._fresh if drafter.needs.features else ()  # heads begin after the first token, on either way
            done = express.run(rows, budget, drafter, rule, len(free) == len(jobs), quiet, self.teller.catch_up)
        except Exception as error:  # it would fail again, after as long a time
            self._note(f"express, given up: {error}")
            self._express = None
            return False
        if done is None:
            return False
        heard = chooser.heard(len(rows))
        chooser.observe([rows[r] for r in heard], [done[r].judged for r in heard])
        for job, told in zip(jobs, done, strict=True):
            if job.done:  # it could not be told of the cycle before
                continue
            kept = job.row.extend(told.emitted, told.origins, self.model.context)
            self.teller.later(job, told, kept)
        if any(job.stops for job in jobs):  # a text may end where it holds a string
            self.teller.catch_up()
        express.paid(time.perf_counter() - started)
        return True

    def schedule(self) -> list[Job]:
        """Let go of who is done or cancelled, admit who fits, read a piece of long prompts, decide how far to draft;
        the rows that are ready."""
        plan = self.scheduler
        if any(job.cancelled for job in plan.running):  # what they are owed comes before their end
            self.teller.catch_up()
        for job in [*plan.running, *plan.waiting]:
            if job.cancelled and not job.done:
                job.end("cancelled")
        self._close(plan.leave())
        for job in plan.admit():
            self._guard(job, self._open)
        self._close(plan.leave())
        ready = self._prefill(plan.running)
        for job in ready:
            job.budget = job.course.budget
        free = [job for job in ready if job.course.depth is None and not self._goes_whole(job)]
        for job, budget in zip(free, self.policy.budget([job.row for job in free]) if ready else (), strict=True):
            job.budget = budget
        return ready

    def _open(self, job: Job) -> None:
        self.model.open([job.row])
        job.seated = True
        try:
            drafter = self._drafter(job.course.drafter)
            drafter.open([job.row])
            whole = self._express is not None and self._express.only_chains(drafter, job.course.rule)
            self.choosers[_course(job)].open(job.row)
            if self.model.branches and not whole:
                self.policy.open([job.row], self.model, drafter, self._rule(job.course.rule))
        except Exception as error:
            self._without_drafter(job, error)

    def _close(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.seated:
                self.policy.close([job.row])
                for chooser in self.choosers.values():  # a row may have lost its drafter since
                    chooser.close(job.row)
                self._leave_drafter(job)
                self.model.close([job.row])

    def _leave_drafter(self, job: Job) -> None:
        try:
            self._drafter(job.course.drafter).close([job.row])
        except Exception as error:
            self._note(f"drafter: {error}")

    def _without_drafter(self, job: Job, error: Exception) -> None:
        """A drafter that fails on a row is taken away from it: drafts are worth nothing beside the request."""
        self._note(f"drafter: {error}")
        job.course = replace(job.course, drafter="none")

    def _prefill(self, jobs: Sequence[Job]) -> list[Job]:
        """Of all prompts together so many tokens are read a step, beside the others' decoding, first come first; what
        is left of a prompt then rides in the score pass. The rows that are ready for it."""
        left, ready = self.scheduler.chunk, []
        for job in jobs:
            if job.unread > left:
                before = job.unread
                self._guard(job, partial(self._read, limit=left))
                left -= min(left, before - job.unread)
            if job.unread <= left and not job.done:
                left -= job.unread
                ready.append(job)
        self._read_ahead([job for job in ready if job.unread > 1 and self._suits(job)])
        return ready

    def _read_ahead(self, jobs: Sequence[Job]) -> None:
        """Rows that can have whole cycles on the device have them from their first token on: all of their prompts but
        the last token is read before, together."""
        self._fresh = {job.row for job in jobs}
        while jobs:
            try:
                read = self.model.prefill([job.row for job in jobs], self.scheduler.chunk)
            except Exception as error:
                self._note(f"prefill: {error}")
                return  # it is read the other way, where it will be seen whose fault that is
            for job, count in zip(jobs, read, strict=True):
                job.prefilled += count
            jobs = [job for job, count in zip(jobs, read, strict=True) if count and job.unread > 1]

    def _read(self, job: Job, limit: int) -> None:
        """Read ahead, or take over what another row has read; with no limit left, only the latter."""
        read = self.model.prefill([job.row], limit)[0]
        helpless = not read and limit == self.scheduler.chunk  # reads nothing ahead, so pieces are no use
        job.prefilled += len(job.row.request.prompt) if helpless else read

    def draft(self, jobs: Sequence[Job]) -> tuple[list[Group], list[Draft]]:
        """Rows in groups by drafter and rule, and the draft of each group."""
        groups = []
        for (drafter, rule), some in groupby(sorted(jobs, key=_course), key=_course):
            members, judge = list(some), self._rule(rule)
            noise = self._make_noise([job.row for job in members], [judge.shared] * len(members))
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
        noise = self._make_noise([job.row], [group.rule.shared])
        try:
            self._proposed(replace(group, noise=noise), [job])
        except Exception:
            return False
        return True

    def _proposed(self, group: Group, jobs: Sequence[Job]) -> Draft:
        budget = self._limited(jobs, group.rule, group.drafter)
        return group.drafter.propose([job.row for job in jobs], budget, group.noise)

    def _limited(self, jobs: Sequence[Job], rule: Verifier, drafter: Drafter) -> list[Budget]:
        budget, rows = [job.budget for job in jobs], [job.row for job in jobs]
        return within_limits(budget, rows, self.model.context, way(rule, drafter))

    def score(self, groups: Sequence[Group], drafts: Sequence[Draft]) -> Scores:
        return self.model.score([job.row for group in groups for job in group.jobs], merge(drafts, self.model.vocab))

    def _blame(self, jobs: Sequence[Job], error: Exception) -> None:
        """A pass failed. Halves of its rows are tried by themselves, down to the one that fails alone and undrafted."""
        self._note(f"score: {error}")
        if len(jobs) > 1:
            self._cycle(jobs[: len(jobs) // 2])
            self._cycle(jobs[len(jobs) // 2 :])
        elif jobs[0].budget.depth:
            jobs[0].budget = Budget(0)
            self._cycle(jobs)
        else:
            jobs[0].end("error", f"the model failed: {error}")

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
                if sound:
                    said = None if scores is None or job.top is None else part(scores, index[reached[:sound]])
                    self._emit(job, news, sound, drafted[r], said)
                if sound < len(reached) and not job.done:
                    job.end("error", dead[reached[sound]])

    def _emit(self, job: Job, news: News, count: int, drafted: Sequence[int], said: Scores | None) -> None:
        kept = job.row.extend(news.tokens[:count], news.origins[:count], self.model.context)
        tokens, origins = news.tokens[:kept], news.origins[:kept]
        logprobs = [] if said is None or job.top is None else tops(said.logits[:kept], tokens, job.top)
        self.teller.tell(job, tokens, origins, logprobs, len(news.path), drafted)

    def fail(self, error: Exception) -> None:
        """Something broke that is nobody's fault: end who is under way, keep who waits."""
        self._note(str(error))
        self.teller.catch_up()
        for job in self.scheduler.running:
            if not job.done:
                job.end("error", f"the engine failed: {error}")

    def _guard(self, job: Job, act: Callable[[Job], None]) -> None:
        """An exception ends this job alone."""
        try:
            act(job)
        except Exception as error:
            job.end("error", str(error))

    def _note(self, what: str) -> None:
        self.failures[what] = self.failures.get(what, 0) + 1


def _course(job: Job) -> tuple[str, str]:
    return job.course.drafter, job.course.rule
