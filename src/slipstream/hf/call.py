"""The callable that `model.generate` runs in place of its own loop."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.generation import GenerateDecoderOnlyOutput

from slipstream.core.interfaces import Drafter
from slipstream.core.rules import rules
from slipstream.core.shapes import Int, Tensor
from slipstream.core.types import Request
from slipstream.drafters.none import NoDrafter
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.job import Course, Job
from slipstream.engines.native.scheduler import Limits
from slipstream.hf.asked import asked
from slipstream.hf.chain import Called, Head, cut
from slipstream.hf.drafting import OWN, by_model, by_name, course, helpers
from slipstream.hf.lend import lent
from slipstream.hf.lines import Line, Show, laid_out
from slipstream.hf.prompts import Prompt, read_prompts
from slipstream.hf.record import Recorder, stacked
from slipstream.hf.refuse import check_asked, check_config, check_inputs, check_ready
from slipstream.hf.stops import Stops, padding, read_stops
from slipstream.models.torch_model import TorchModel
from slipstream.plan.policy import Adaptive

CHUNK = 512  # prompt tokens of a row read in one pass


def generate(
    model: Any,
    input_ids: Int[Tensor, "batch length"],
    logits_processor: Sequence[Any],
    stopping_criteria: Sequence[Any],
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    *,
    drafter: Any = "ngram",
    depth: int | None = None,
    verify: str = "coupled",
    options: Mapping[str, str] | None = None,
    seed: int | None = None,
    stop_strings: Any = None,
    tokenizer: Any = None,
    **inputs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """What plain `generate` returns, sooner. The first seven arguments are transformers' own.

    `drafter` is a name ("ngram", "none", a folder or id of a draft model) or another model of transformers with the
    same tokens, `options` are a named drafter's own; `depth` is how many tokens it drafts, None for as many as pay.
    `verify` is a rule: with "coupled" one seed gives the same tokens at any depth and with any drafter.
    """
    known = asked()
    streamer, tokenizer = streamer or known.get("streamer"), tokenizer or known.get("tokenizer")
    check_asked(known | ({"synced_gpus": True} if synced_gpus else {}))
    check_config(generation_config)
    check_inputs(inputs)
    prompts = read_prompts(input_ids, inputs.get("attention_mask"), inputs.get("position_ids"))
    sampled, chunk = bool(generation_config.do_sample), generation_config.prefill_chunk_size or CHUNK
    how = course(drafter, depth, verify, sampled)
    models = [model, *(helpers(drafter, options or {}) if how.drafter == OWN else ())]
    check_ready(models)
    if seed is None and sampled:
        seed = int(torch.randint(2**62, ()))
    with torch.no_grad(), lent(models, chunk) as (target, *drafting):
        parts: dict[str, Drafter] = {"none": NoDrafter(target.vocab)}
        if how.drafter == OWN:
            named = not drafting
            parts[OWN] = by_name(drafter, options or {}, target, tokenizer) if named else by_model(drafting[0], target)
        task = Task(target, read_stops(stopping_criteria, target.vocab, stop_strings, tokenizer), how, sampled, seed)
        lines = [task.line(r, prompt, logits_processor) for r, prompt in enumerate(prompts)]
        answer = Answer(input_ids, lines, target, generation_config, len(task.stops.criteria) > 0)
        decode(answer.model, parts, lines, task.stops, answer.scored, streamer and Show(streamer, answer.pad))
        return answer.give()


@dataclass(frozen=True)
class Task:
    """What all rows have in common."""

    target: TorchModel
    stops: Stops
    how: Course
    sampled: bool
    seed: int | None

    def line(self, number: int, prompt: Prompt, processors: Sequence[Any]) -> Line:
        """The job of one row; its number tells its draws from those of other rows."""
        room = max(1, self.stops.longest - len(prompt.ids))  # plain `generate` asks after the first token, too
        if len(prompt.tokens) + room > self.target.context:
            raise ValueError(
                f"max_new_tokens or max_length ask for {len(prompt.tokens) + room} tokens in row {number}; "
                f"the model's context holds {self.target.context}"
            )
        chain = cut(processors, number, Head(self.stops.ends, self.target.vocab, prompt.padded), self.sampled)
        called = Called(chain.middle, prompt.ids, len(prompt.tokens)) if chain.middle else None
        request = Request(
            prompt.tokens,
            replace(chain.sampling, seed=self.seed),
            max_tokens=room,
            ends=self.stops.ends,
            sample=number,
            min_tokens=min(room, max(0, chain.least - len(prompt.ids))),
            processor=called,
        )
        return Line(prompt, Job(request, self.how), chain, called)


def decode(
    model: Model,
    drafters: Mapping[str, Drafter],
    lines: Sequence[Line],
    criteria: StoppingCriteriaList,
    scored: bool,
    show: Show | None,
) -> None:
    """Run all rows to their ends, in this thread."""
    limits = Limits(rows=len(lines), tokens=sys.maxsize, prefill=sys.maxsize)
    batch = Batch(model, drafters.__getitem__, lambda name: rules.get(name)(), Adaptive(), limits)
    for line in lines:
        batch.check(line.job)
    for line in lines:
        batch.add(line.job)
    while batch.step():
        for line in lines:
            line.follow(criteria, recorder, scored)
        if show:
            show.follow(lines)
    if show:
        show.end()
    for what in batch.failures:
        warnings.warn(f"speculation went on without a part that failed: {what}", RuntimeWarning, stacklevel=2)
