"""What deferral scores look at: the log-probabilities that an answer came with, or those of one further pass.

Hidden states always take a further pass over prompt and answer. Log-probabilities take one on a GPU if a score asks for
more of the most probable tokens than captured cycles record.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.device import RECORDED_LOGPROBS
from slipstream.core.lossy.deferral import AnswerEvidence, DeferralScore
from slipstream.core.lossy.learned import LearnedScore
from slipstream.core.sampling import Sampling
from slipstream.engines.base import Completion, Engine, GenerationOptions, Logprob, Prompt
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.prompt import encode
from slipstream.models.sources.folder import weights_sha256
from slipstream.models.target import Target


def evidence_of_answer(answer: Completion) -> AnswerEvidence:
    """The evidence of an answer that was generated with log-probabilities."""
    return _evidence(answer.text, answer.logprobs)


def _evidence(text: str, entries: Sequence[Logprob]) -> AnswerEvidence:
    return AnswerEvidence(
        text,
        [entry.logprob for entry in entries],
        [[logprob for _, logprob in entry.top_logprobs] for entry in entries],
    )


def rescored(engine: Engine, prompt: Prompt, answer: Completion, top: int, raw: bool = False) -> AnswerEvidence:
    """The evidence of an answer that was generated without log-probabilities. The engine scores prompts."""
    ids = encode(prompt, raw, engine.text, engine.model_info.context_length)
    if not answer.token_ids:
        return AnswerEvidence(answer.text)
    options = GenerationOptions(0, prompt_logprobs=top)
    (handle,) = engine.submit([*ids, *answer.token_ids], Sampling(0), options)
    entries = [entry for entry in (handle.result().prompt_logprobs or [])[len(ids) :] if entry is not None]
    return _evidence(answer.text, entries)


def with_states(engine: Engine, prompt: Prompt, answer: Completion, layer: int, raw: bool = False) -> AnswerEvidence:
    """The evidence of an answer with the hidden states of a layer, averaged over the places that predict its tokens."""
    if not answer.token_ids:
        return AnswerEvidence(answer.text)
    ids = encode(prompt, raw, engine.text, engine.model_info.context_length)
    states = native(engine).hidden_states([*ids, *answer.token_ids], layer)[len(ids) - 1 :]
    return AnswerEvidence(answer.text, states=states.double().mean(0).tolist())


def prepare(engine: Engine, score: DeferralScore) -> None:
    """Make an engine ready for a score, before its first request. ValueError for a classifier of another model."""
    if not isinstance(score, LearnedScore):
        return
    target, classifier = native(engine).target, score.classifier
    if (own := weights_of(target)) != classifier.sha256:
        raise ValueError(
            f"the classifier {score.file} was trained for {classifier.model} (sha256 {classifier.sha256[:12]}), and "
            f"{target.files.name} is another model (sha256 {own[:12]}); train one for it"
        )
    target.model.declare((classifier.layer,))


def weights_of(target: Target) -> str:
    """The sha256 of a model's weights."""
    return target.files.sha256 or weights_sha256(target.files.path)


def native(engine: Engine) -> NativeEngine:
    if not isinstance(engine, NativeEngine):
        raise ValueError("hidden states are read by the native engine; take another score, or --engine native")
    return engine


def rescores(engine: Engine, top: int) -> bool:
    """Whether a further pass is faster than generating with the log-probabilities of so many tokens: on a GPU, if
    captured cycles do not record them."""
    target = getattr(engine, "target", None)
    on_gpu = target is not None and target.model.device.type == "cuda"
    return on_gpu and top > RECORDED_LOGPROBS[-1] and engine.capabilities.prompt_logprobs
