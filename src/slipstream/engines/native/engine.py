"""The native engine: takes requests from any thread, returns text in chunks, and decodes in one worker thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.interfaces import Drafter, Policy, Verifier
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Constraint
from slipstream.drafters import drafters
from slipstream.drafters.build import Options, build_drafter
from slipstream.engines.agreement import Agreement
from slipstream.engines.base import Capabilities, GenerationOptions, ModelInfo, Prompt, Speculation
from slipstream.engines.completion import Completion, Guarantee, SpeculationStats
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.job_engine import JobEngine
from slipstream.engines.native.arguments import check_types, chosen_policy, engine_plan, own_drafter
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.build import build_target, captured_runner
from slipstream.engines.native.captured.warm_up import prompts, recordings, rounds, speech_rounds
from slipstream.engines.native.compare import agreement, comparable, draft_speed
from slipstream.engines.native.loaded_target import given_target
from slipstream.engines.native.planning import guarantee, law_sampling, meets_its_draws_again, request_plan
from slipstream.engines.native.scheduler import Limits
from slipstream.engines.native.watch import ObservedRule, Watch
from slipstream.engines.native.worker import Worker, turns_of
from slipstream.engines.profiles import find_profile, save_learned, seed_policy
from slipstream.engines.speech.audio_prompt import audio_prompt
from slipstream.models.speech.audio import Audio
from slipstream.models.target import Target
from slipstream.models.text.codec import TextCodec
from slipstream.plan.ir.nodes import Plan
from slipstream.plan.lower.native import lower_native
from slipstream.plan.policy.drafting_cost import DraftingCost
from slipstream.plan.profile.profile import Profile

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slipstream.engines.native.captured.chain_cycle import ChainCycle
    from slipstream.engines.native.captured.tree_cycle import TreeCycle


class NativeEngine(JobEngine):
    """Decodes requests from any thread in one batch.

    - `model`: a name, a folder, a GGUF file, or a loaded causal language model of transformers. The tokenizer of a
    loaded
      model is passed as `tokenizer=`, or found by its `name_or_path`.
    - `drafter`: a drafter's name, a model's name or folder, None or "none" for plain decoding, or a `Drafter`.
    - `verify`: the rule. None: `coupled` for requests with a seed, so that they repeat, and the rule that accepts most
      for others.
    - `depth`: drafted tokens per cycle. None: the policy decides in every cycle.
    - `shape`: draft trees, such as 24 (nodes) or "4x2x1" (by level).
    - `options`: options of the drafter, as a dictionary.
    - `limits`: `Limits` of rows, memory and prefill.
    - `watch`: a function that is called with every draft, law and verdict.
    - `plan`: all of this as one plan: a `Plan`, a file, or the name of a plan that comes with slipstream.
    - `policy`: a registered name or a `Policy`. On a GPU, rows whose policy does not choose among captured sizes
      (`Policy.choose`) use the ordinary host loop.
    - `profile`: the costs and acceptance that the policy starts with: a file of `slipstream profile`, a `Profile`, None
      for the one in the cache that fits, or "none". `learn`: add what the policy has learnt to it on `close`.
    - `warm_up`: call `warm_up` first.
    - `loading`: how the model is loaded: `dtype`, `device`, `context`, `invariant`, `package`, `trust_remote_code`."""

    capabilities = Capabilities(
        drafters=drafters,
        rules=rules,
        sampling=frozenset(field.name for field in fields(Sampling)),
        logprobs=True,
        prompt_logprobs=True,
        grammar=True,
        min_tokens=True,
        prediction=True,
        batch=True,
        batch_drafting=True,
        seed=True,
        origins=True,
        switch=True,
    )

    def __init__(
        self,
        model: str | PathLike[str] | Target | PreTrainedModel = "smollm2-135m",
        drafter: str | Drafter | None = "ngram",
        verify: str | None = None,
        depth: int | None = None,
        *,
        shape: Shape | str | int | None = None,
        options: Options | None = None,
        limits: Limits | None = None,
        watch: Watch | None = None,
        policy: str | Policy | None = None,
        plan: Plan | str | PathLike[str] | None = None,
        profile: Profile | str | PathLike[str] | None = None,
        learn: bool = False,
        warm_up: bool = False,
        **loading: Any,
    ) -> None:
        check_types(drafter, options, limits, watch, loading)
        chosen = Speculation(depth=depth, verify=verify, shape=shape)
        self.plan, self._drafter_name = engine_plan(plan, model, drafter, chosen, options, policy, loading)
        self._settings = settings = lower_native(self.plan)
        self._policy = chosen_policy(settings.policy if policy is None else policy, settings.max_depth)
        if plan is not None and isinstance(model, str | PathLike):
            model, loading = settings.model, {**settings.loading, **loading}
        if isinstance(model, str | PathLike) and "tokenizer" not in loading:
            self.target = build_target(fspath(model), **loading)
        else:
            self.target = given_target(model, **loading)
        limits = limits or Limits()
        with turns_of(self.target.model):
            self.target.model.retain(limits.retained, limits.retained_bytes)
        own = own_drafter(drafter)
        if own is None:
            own = build_drafter(settings.drafter, self.target, settings.options)
        else:
            self.target.model.declare(own.needs.features)
        self._drafters: dict[str, Drafter] = {"none" if settings.plain else self._drafter_name: own}
        self._profile, self._learn = profile, learn
        seed_policy(self._policy, find_profile(profile, self.target), self._drafter_name, own)
        self._rules: dict[str, Verifier] = {}
        self._watch = watch
        runner = None if watch else captured_runner(self.target.model, self._policy.costs)
        self._batch = Batch(self.target.model, self.drafter, self._rule, self._policy, limits, runner=runner)
        if runner is not None:
            with turns_of(self.target.model):
                runner.reserve(self._batch.scheduler.tokens)
        self._building = threading.Lock()
        self._worker = Worker(self._batch)
        if warm_up:
            self.warm_up()

    @cached_property
    def model_info(self) -> ModelInfo:
        files, model = self.target.files, self.target.model
        return ModelInfo(files.name, self.target.label, files.quantised, model.vocab, model.context)

    @property
    def text(self) -> TextCodec:
        return self.target.text

    @property
    def drafter_name(self) -> str:
        return self._drafter_name

    @property
    def drafting_cost(self) -> DraftingCost | None:
        """The measured cost of a drafted token on this machine; None if cycles are captured (costs are by size)."""
        return None if self._batch.captured.runner is not None else self._policy.drafting_cost

    @property
    def captured_cycles(self) -> list[ChainCycle | TreeCycle]:
        """The cycles that were captured so far; none where cycles are not captured."""
        runner = self._batch.captured.runner
        return [] if runner is None else runner.captured

    def drafter(self, name: str) -> Drafter:
        if name not in self._drafters:
            with self._building:  # a drafter is built only once
                if name not in self._drafters:
                    self._drafters[name] = build_drafter(name, self.target)
        return self._drafters[name]

    def agreements(
        self,
        prompt: Prompt,
        sampling: Sampling,
        options: GenerationOptions,
        speculative: Sequence[Completion],
        plain: Sequence[Completion],
    ) -> list[Agreement] | None:
        if not all(map(comparable, speculative)):
            return None
        request = self.request(prompt, sampling, options)
        with turns_of(self.target.model):
            return [
                agreement(self.target.model, replace(request, sample=i), ours.token_ids, theirs.token_ids)
                for i, (ours, theirs) in enumerate(zip(speculative, plain, strict=True))
            ]

    def warm_up(self) -> None:
        """On a GPU, capture the cycles of usual numbers of rows and depths now, not when requests first need them.

        It takes some seconds, and longer where kernels must be compiled, which are kept on disk. On a CPU there is
        nothing to do."""
        if (runner := self._batch.captured.runner) is None:
            return
        drafts, speech = not self._settings.plain and self._drafter_name != "none", self.target.speech
        model, rows = self.target.model, self._batch.scheduler.rows
        runner.captures_all = True
        try:
            sizes = [size for size in runner.prompt_sizes if size <= self._batch.scheduler.chunk]
            texts = rounds(rows, drafts, model.context, sizes) if speech is None else speech_rounds(rows, drafts)
            for number, each in enumerate(texts):
                runner.least_text = each.text
                batches: Sequence[Sequence[Prompt]] = [prompts(each.rows, model.vocab, each.prompt, number)]
                if speech is not None:
                    batches = recordings(each.rows, speech.languages)
                for batch in batches:
                    for handle in self.submit_all(batch, [each.sampling] * each.rows, each.options):
                        handle.result()
        finally:
            runner.captures_all, runner.least_text = False, 0
        self._policy.forget()
        self._batch.publisher.stats = SpeculationStats()

    def draft_speed(self, sample: Completion, tokens: int = 32) -> float | None:
        return draft_speed(self.drafter(self.drafter_name), sample, tokens)

    def hidden_states(self, token_ids: Sequence[int], layer: int) -> Float[Tensor, "tokens hidden"]:
        """The output of a layer at every token of a text but the last, by one further pass over it."""
        self.target.model.declare((layer,))
        options, sampling = GenerationOptions(0, prompt_logprobs=0), Sampling(0)
        request = self.request(list(token_ids), sampling, options)
        (job,) = self._samples(request, self._plan(Speculation(off=True), sampling), sampling, options)
        job.state_layer = layer
        self._send([job])
        if error := job.result().error:
            raise ValueError(error)
        return torch.cat(job.states)

    def _rule(self, name: str) -> Verifier:
        if name not in self._rules:
            rule = rules.make(name)
            self._rules[name] = ObservedRule(rule, self._watch) if self._watch else rule
        return self._rules[name]

    def _check_running(self) -> None:
        self._worker.check()

    def _plan(self, speculation: Speculation, sampling: Sampling) -> DecodingPlan:
        plan = request_plan(self._settings, self._drafter_name, speculation, sampling)
        if rules.get(plan.rule).needs_draft and self.drafter(plan.drafter).own_model is None:
            raise ValueError(
                f"the rule {plan.rule} mixes the laws of two models; it needs a draft model, and {plan.drafter} is none"
            )
        return plan

    def _law_sampling(self, plan: DecodingPlan, sampling: Sampling) -> Sampling:
        return law_sampling(plan.rule, sampling)

    def _history(self, plan: DecodingPlan, sampling: Sampling, options: GenerationOptions) -> str | None:
        return (
            options.tenant if options.speculation.history and not meets_its_draws_again(plan.rule, sampling) else None
        )

    def _guarantee(self, plan: DecodingPlan, sampling: Sampling) -> Guarantee:
        return guarantee(plan.rule, sampling.seed is not None, self.target.model.invariant)

    def _constraint(self, options: GenerationOptions) -> Callable[[], Constraint] | None:
        if options.constraint is None:
            return None
        from slipstream.engines.native.grammar import compiled

        return compiled(options.constraint, self.target.text, self.target.model.vocab)

    def _heard(self, prompt: Prompt) -> Prompt:
        return audio_prompt(self, self.target.speech, prompt) if isinstance(prompt, Audio) else prompt

    def _send(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._batch.check(job)
        self._worker.send(jobs)

    def close(self) -> None:
        self._worker.close()
        if self._learn:
            learned = self._policy.learned(self.drafter(self._drafter_name))
            save_learned(self._profile, self.target, self._drafter_name, learned)
            self._learn = False

    @property
    def stats(self) -> dict[str, Any]:
        totals, scheduler = self._batch.publisher.stats, self._batch.scheduler
        return {
            "model": self.target.label,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "cache_use": scheduler.use,
            "preemptions": scheduler.preemptions,
            "row_cycles": totals.cycles,
            "tokens": totals.emitted,
            "tau": totals.tau,
            "acceptance": totals.acceptance,
            "drafted": sum(totals.drafted),
            "wasted": totals.wasted,
            **asdict(self.target.model.prefixes.counts),
            "failures": dict(self._batch.failures),
        }
