"""The arguments of `generate` for a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from slipstream.engines.job import Job

if TYPE_CHECKING:
    from transformers import GenerationConfig


@dataclass(frozen=True)
class TransformersConfig:
    """Options of the engine, as `-o key=value`."""

    model: str = ""  # the draft model
    exit: int = 0  # early exit: number of the target's layers that draft; 0: a third of them
    ngram: int = 2  # prompt lookup: tokens of the longest match
    confidence: float = -1.0  # a draft model stops below this probability; below 0: transformers' default
    rows: int = 16  # plain requests that decode in one call


def alike(job: Job) -> tuple[Any, ...] | None:
    """A key: jobs with equal keys may share a call. None if a job needs a separate call.

    Assisted decoding supports one row. A seeded text is repeatable only if its row is decoded alone."""
    request = job.row.request
    how = request.sampling
    if job.plan.drafter != "none" or (how.seed is not None and how.temperature > 0):
        return None
    return repr(replace(how, seed=None)), request.min_tokens, request.ends, request.max_tokens


def generation(job: Job, pad: int, options: TransformersConfig, layers: int) -> GenerationConfig:
    """The generation config of a job. Every parameter is set, so that no default of a model or library applies."""
    from transformers import GenerationConfig

    request = job.row.request
    how = request.sampling
    warm: dict[str, Any] = {"do_sample": False}
    if how.temperature > 0:
        warm = {"do_sample": True, "temperature": how.temperature, "top_k": how.top_k, "top_p": how.top_p}
        warm |= {"min_p": how.min_p} if how.min_p else {}
    shape: dict[str, Any] = {"repetition_penalty": how.repetition_penalty}
    if how.logit_bias:
        shape["sequence_bias"] = [[[token], value] for token, value in how.logit_bias.items()]
    if how.suppress_tokens:
        shape["suppress_tokens"] = sorted(how.suppress_tokens)
    return GenerationConfig(
        max_new_tokens=request.max_tokens,
        min_new_tokens=request.min_tokens or None,
        eos_token_id=sorted(request.ends) or None,
        pad_token_id=pad,
        use_cache=True,
        **warm,
        **shape,
        **_drafting(job, options, layers),
    )


def _drafting(job: Job, options: TransformersConfig, layers: int) -> dict[str, Any]:
    drafter, depth = job.plan.drafter, job.plan.depth
    if drafter == "ngram":
        return {"prompt_lookup_num_tokens": depth or 10, "max_matching_ngram_size": options.ngram}
    if drafter == "early_exit":
        return {"assistant_early_exit": options.exit or max(1, layers // 3)}
    return {}


def set_depth(assistant: Any, depth: int | None, confidence: float) -> None:
    """Set the draft length, which transformers reads from the assistant's own config.

    A fixed depth is neither adapted nor cut by confidence. Without a depth, transformers does both, starting at its
    default."""
    own = assistant.generation_config
    own.num_assistant_tokens = depth
    own.num_assistant_tokens_schedule = "constant" if depth else None
    own.assistant_confidence_threshold = confidence if confidence >= 0 else 0.0 if depth else None


def padded(jobs: Sequence[Job], pad: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Prompts as one tensor, padded on the left as `generate` expects."""
    prompts = [list(job.row.request.prompt) for job in jobs]
    width = max(map(len, prompts))
    ids = [[pad] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }
