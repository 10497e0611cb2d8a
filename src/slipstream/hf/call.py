"""The callable that `model.generate` runs in place of its own loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.generation import GenerateDecoderOnlyOutput

from slipstream.core.array_types import Int, Tensor
from slipstream.core.types import Request
from slipstream.engines.job import DecodingPlan, Job
from slipstream.hf.asked import asked
from slipstream.hf.chain import Called, Head, cut
from slipstream.hf.drafting import decoding_plan, drafters, helpers
from slipstream.hf.lend import lent
from slipstream.hf.lines import Line, Show, decode, laid_out
from slipstream.hf.prompts import Prompt, read_prompts
from slipstream.hf.record import Recorder, stacked
from slipstream.hf.refuse import check_asked, check_config, check_inputs, check_ready
from slipstream.hf.stops import Stops, padding, read_stops
from slipstream.models.run.torch_model import TorchModel

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
    verify: str | None = None,
    options: Mapping[str, str] | None = None,
    seed: int | None = None,
    stop_strings: Any = None,
    tokenizer: Any = None,
    **inputs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """What plain `generate` returns, sooner. The first seven arguments are what transformers prepares.

    `drafter` is a name ("ngram", "none", a folder or id of a draft model) or another model of transformers with the
    same tokens, and `options` are a named drafter's own; `depth` is how many tokens are drafted, None for as many as
    pay. `verify` is the rule; None is "coupled", with which one seed gives the same tokens at any depth and with any
    drafter. Without a `seed` one is drawn from torch's generator, as in plain `generate`, so that `torch.manual_seed`
    repeats a text.
    """
    known = asked()
    streamer = known.get("streamer") if streamer is None else streamer
    tokenizer = known.get("tokenizer") if tokenizer is None else tokenizer
    check_asked(known | ({"synced_gpus": True} if synced_gpus else {}))
    check_config(generation_config)
    check_inputs(inputs)
    prompts = read_prompts(input_ids, inputs.get("attention_mask"), inputs.get("position_ids"))
    sampled = bool(generation_config.do_sample)
    how = decoding_plan(drafter, depth, verify, sampled)
    models = [model, *helpers(drafter, options)]
    check_ready(models)
    if seed is None and sampled:
        seed = int(torch.randint(2**62, ()))
    with torch.no_grad(), lent(models, generation_config.prefill_chunk_size or CHUNK) as (target, *draft):
        stops = read_stops(stopping_criteria, target.vocab, stop_strings, tokenizer)
        task = Task(target, stops, padding(generation_config, stops, len(prompts)), how, sampled, seed)
        wanted = Wanted.of(generation_config)
        recorder = Recorder(target) if wanted.scores or wanted.logits else None
        scored = recorder if wanted.scores else None
        lines = [task.line(r, prompt, logits_processor, scored) for r, prompt in enumerate(prompts)]
        parts = drafters(drafter, options, target, draft, tokenizer)
        decode(recorder or target, parts, lines, None if streamer is None else Show(streamer, task.pad))
        return wanted.answer(laid_out(input_ids, lines, task.pad), lines, recorder)


@dataclass(frozen=True)
class Task:
    """What all rows have in common."""

    target: TorchModel
    stops: Stops
    pad: int
    how: DecodingPlan
    sampled: bool
    seed: int | None

    def line(self, number: int, prompt: Prompt, processors: Sequence[Any], recorder: Recorder | None) -> Line:
        """The job of one row; its number tells its draws from those of other rows."""
        room = max(1, self.stops.longest - len(prompt.ids))  # plain `generate` looks at the length after a token
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
        return Line(prompt, Job(request, self.how), chain, called, self.stops.criteria, recorder)


@dataclass(frozen=True)
class Wanted:
    """What is to be returned."""

    record: bool
    scores: bool
    logits: bool

    @staticmethod
    def of(config: Any) -> Wanted:
        record = bool(config.return_dict_in_generate)
        return Wanted(record, record and bool(config.output_scores), record and bool(config.output_logits))

    def answer(
        self, sequences: Int[Tensor, "batch longer"], lines: Sequence[Line], recorder: Recorder | None
    ) -> Tensor | GenerateDecoderOnlyOutput:
        if not self.record:
            return sequences
        scores = stacked([line.scores for line in lines], sequences.device) if self.scores else None
        logits = None
        if self.logits and recorder is not None:
            said = [recorder.logits(line.job.row)[: len(line.output)] for line in lines]
            logits = stacked(said, sequences.device)
        return GenerateDecoderOnlyOutput(sequences=sequences, scores=scores, logits=logits)
