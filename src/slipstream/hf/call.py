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
from slipstream.hf.borrow import borrowed
from slipstream.hf.caller import caller_arguments
from slipstream.hf.drafting import decoding_plan, draft_models, drafters
from slipstream.hf.processors import LeadingProcessors, MiddleProcessors, split_processors
from slipstream.hf.prompts import PromptRow, read_prompts
from slipstream.hf.record import LogitsRecorder, stack_steps
from slipstream.hf.rows import OutputRow, StreamerFeed, decode, output_ids
from slipstream.hf.stops import StopConditions, padding, read_stops
from slipstream.hf.unsupported import check_arguments, check_config, check_inputs, check_models
from slipstream.models.run.torch_model import TorchModel

PREFILL_CHUNK = 512  # prompt tokens of a row read in one pass


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
    """Return what plain `generate` returns. The first seven arguments are prepared by transformers.

    `drafter` is a name ("ngram", "none", a folder or id of a draft model) or another transformers model with the same
    tokens. `options` belong to a named drafter. `depth` is the number of drafted tokens; None adapts it to measured
    cost and acceptance. `verify` is the rule; None is "coupled": one seed gives the same tokens at any depth and with
    any drafter. Without a `seed` one is drawn from torch's generator, as in plain `generate`, so that
    `torch.manual_seed` repeats a text.
    """
    models = [model, *draft_models(drafter, options)]
    check_models(models)
    arguments = caller_arguments()
    streamer = arguments.get("streamer") if streamer is None else streamer
    tokenizer = arguments.get("tokenizer") if tokenizer is None else tokenizer
    check_arguments(arguments | ({"synced_gpus": True} if synced_gpus else {}))
    check_config(generation_config)
    check_inputs(inputs)
    prompts = read_prompts(input_ids, inputs.get("attention_mask"), inputs.get("position_ids"))
    sampled = bool(generation_config.do_sample)
    plan = decoding_plan(drafter, depth, verify, sampled)
    if seed is None and sampled:
        seed = int(torch.randint(2**62, ()))
    with torch.no_grad(), borrowed(models, generation_config.prefill_chunk_size or PREFILL_CHUNK) as (target, *draft):
        stops = read_stops(stopping_criteria, target.vocab, stop_strings, tokenizer)
        pad = padding(generation_config, stops, len(prompts))
        settings = BatchSettings(target, stops, plan, sampled, seed)
        output = OutputOptions.of(generation_config)
        recorder = LogitsRecorder(target) if output.scores or output.logits else None
        scored = recorder if output.scores else None
        rows = [settings.row(r, prompt, logits_processor, scored) for r, prompt in enumerate(prompts)]
        by_name = drafters(drafter, options, target, draft, tokenizer)
        decode(recorder or target, by_name, rows, None if streamer is None else StreamerFeed(streamer, pad))
        return output.result(output_ids(input_ids, rows, pad), rows, recorder)


@dataclass(frozen=True)
class BatchSettings:
    """The settings that all rows share."""

    target: TorchModel
    stops: StopConditions
    plan: DecodingPlan
    sampled: bool
    seed: int | None

    def row(
        self, number: int, prompt: PromptRow, processors: Sequence[Any], recorder: LogitsRecorder | None
    ) -> OutputRow:
        """One row with its job. The number is part of the key of its random numbers, so that rows differ."""
        room = max(1, self.stops.longest - len(prompt.ids))  # plain `generate` checks the length after a token
        if len(prompt.tokens) + room > self.target.context:
            raise ValueError(
                f"max_new_tokens or max_length ask for {len(prompt.tokens) + room} tokens in row {number}; "
                f"the model's context holds {self.target.context}"
            )
        leading = LeadingProcessors(self.stops.ends, self.target.vocab, prompt.padded)
        chain = split_processors(processors, number, leading, self.sampled)
        middle = MiddleProcessors(chain.middle, prompt.ids, len(prompt.tokens)) if chain.middle else None
        request = Request(
            prompt.tokens,
            replace(chain.sampling, seed=self.seed),
            max_tokens=room,
            ends=self.stops.ends,
            sample=number,
            min_tokens=min(room, max(0, chain.min_length - len(prompt.ids))),
            processor=middle,
        )
        return OutputRow(prompt, Job(request, self.plan), chain, middle, self.stops.criteria, recorder)


@dataclass(frozen=True)
class OutputOptions:
    """What `generate` returns."""

    as_dict: bool
    scores: bool
    logits: bool

    @staticmethod
    def of(config: Any) -> OutputOptions:
        as_dict = bool(config.return_dict_in_generate)
        return OutputOptions(as_dict, as_dict and bool(config.output_scores), as_dict and bool(config.output_logits))

    def result(
        self, sequences: Int[Tensor, "batch longer"], rows: Sequence[OutputRow], recorder: LogitsRecorder | None
    ) -> Tensor | GenerateDecoderOnlyOutput:
        if not self.as_dict:
            return sequences
        scores = stack_steps([row.scores for row in rows], sequences.device) if self.scores else None
        logits = None
        if self.logits and recorder is not None:
            kept = [recorder.logits(row.job.row)[: len(row.output)] for row in rows]
            logits = stack_steps(kept, sequences.device)
        return GenerateDecoderOnlyOutput(sequences=sequences, scores=scores, logits=logits)
