"""Log-probabilities of an answer by one further pass over prompt and answer.

On a GPU, requests that report log-probabilities do not run in captured cycles. Reading the answer once more is faster.
"""

from __future__ import annotations

from slipstream.core.lossy.deferral import AnswerEvidence
from slipstream.core.sampling import Sampling
from slipstream.engines.base import Completion, Engine, GenerationOptions, Prompt
from slipstream.engines.prompt import encode


def rescored(engine: Engine, prompt: Prompt, answer: Completion, top: int, raw: bool = False) -> AnswerEvidence:
    """The evidence of an answer that was generated without log-probabilities. The engine scores prompts."""
    ids = encode(prompt, raw, engine.text, engine.model_info.context_length)
    if not answer.token_ids:
        return AnswerEvidence(answer.text)
    options = GenerationOptions(0, prompt_logprobs=top)
    (handle,) = engine.submit([*ids, *answer.token_ids], Sampling(0), options)
    entries = [entry for entry in (handle.result().prompt_logprobs or [])[len(ids) :] if entry is not None]
    return AnswerEvidence(
        answer.text,
        [entry.logprob for entry in entries],
        [[logprob for _, logprob in entry.top_logprobs] for entry in entries],
    )


def rescores(engine: Engine) -> bool:
    """Whether a further pass is better than asking for log-probabilities: on a GPU."""
    target = getattr(engine, "target", None)
    return engine.capabilities.prompt_logprobs and target is not None and target.model.device.type == "cuda"
