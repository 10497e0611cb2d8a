"""The JSON report of a run of `generate`. Names are those of OpenAI and vLLM if they have one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.cli.generate.pairs import FEW

if TYPE_CHECKING:
    from slipstream.cli.generation import Run
    from slipstream.engines.base import Completion, Engine, Logprob, SpeculationStats
    from slipstream.models.text.codec import TextCodec
    from slipstream.plan.policy.drafting_cost import DraftingCost


def completion_report(run: Run, engine: Engine, drafter: str) -> dict[str, Any]:
    """The report of a run. A single sample is in the report itself, several are under `choices`."""
    first, samples = run.samples[0], [_sample(sample, engine.text) for sample in run.samples]
    body = samples[0] if len(samples) == 1 else {"completion_tokens": run.times.tokens, **_drafting(run.stats)}
    choices = {} if len(samples) == 1 else {"choices": [{"index": i, **each} for i, each in enumerate(samples)]}
    return {
        "engine": engine.version,
        "model": engine.label,
        "quantised": engine.model_info.quantised,
        "drafter": drafter,
        "rule": first.rule,
        "lossless": first.lossless,
        "repeatable": first.repeatable,
        "prompt_tokens": first.prompt_tokens,
        **body,
        **choices,
        "tokens_per_second": round(run.times.speed, 2),
        "seconds_to_first_token": round(run.times.first[0], 3) if run.times.first else None,
    }


def _sample(sample: Completion, text: TextCodec) -> dict[str, Any]:
    logprobs = (
        {"logprobs": {"content": [_logprob(logprob, text) for logprob in sample.logprobs]}} if sample.logprobs else {}
    )
    return {
        "text": sample.text,
        "finish_reason": sample.finish_reason,
        "completion_tokens": sample.completion_tokens,
        "token_ids": list(sample.token_ids),
        "origins": [str(origin) for origin in sample.origins],
        **_drafting(sample.stats),
        **({} if sample.route is None else {"route": {"model": sample.route.model, "score": sample.route.score}}),
        **logprobs,
    }


def _drafting(stats: SpeculationStats) -> dict[str, Any]:
    return {
        "tau": round(stats.tau, 3),
        "acceptance": [round(share, 3) for share in stats.acceptance],
        "drafted": sum(stats.drafted),
        "wasted": stats.wasted,
    }


def _logprob(logprob: Logprob, text: TextCodec) -> dict[str, Any]:
    others = [_token(token, value, text) for token, value in logprob.top_logprobs]
    return {**_token(logprob.token_id, logprob.logprob, text), "top_logprobs": others}


def _token(token: int, value: float, text: TextCodec) -> dict[str, Any]:
    return {"token": text.decode([token]) or text.token(token), "token_id": token, "logprob": round(value, 5)}


def count_tokens(count: int) -> str:
    return "1 token was" if count == 1 else f"{count} tokens were"


def why_undrafted(run: Run, drafter: str, depth: int | None, cost: DraftingCost | None) -> str | None:
    """A sentence if the policy let the chosen drafter draft almost nothing; otherwise None."""
    if drafter == "none" or depth is not None or not run.times.tokens or run.drafted >= FEW * run.times.tokens:
        return None
    start = f"only {count_tokens(run.drafted)} drafted" if run.drafted else "nothing was drafted"
    if cost is None:
        return f"{start}: the policy expected plain decoding to be faster"
    if not cost.measured:
        why = f"{drafter} found nothing to propose" if cost.requested else "the text ended before drafting was tried"
        return f"{start}: {why}"
    price = f"a drafted token costs {cost.total:.2f} of a target pass"
    if cost.total >= cost.acceptance:
        odds = f"{cost.acceptance:.0%} of them are expected to be accepted"
        return f"{start}: on this machine {price}, and {odds}, so plain decoding is faster"
    if (accepted := sum(run.stats.accepted)) < run.drafted * cost.total:
        return f"{start} and {accepted} accepted, which does not pay: on this machine {price}"
    return f"{start}: on this machine {price}, and the policy drafts more only where drafts have paid before"
