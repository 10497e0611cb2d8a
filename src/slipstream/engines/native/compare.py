"""Compares speculation with plain decoding: the draft model's own speed, and the differences between two outputs.

Every position where the outputs differ is computed again in several ways that round differently. The spread of their
results measures the rounding error at this position. A token whose score is further from the best than that is a real
difference; the others are flipped ties (`engines.agreement`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from slipstream.core import sampling
from slipstream.core.array_types import Float, Tensor
from slipstream.core.interfaces import Drafter
from slipstream.core.law import OneHot
from slipstream.core.loop import decode
from slipstream.core.noise import Purpose, fold, uniform
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.shaping import shape
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Origin, Request, Row
from slipstream.core.verify.match import Greedy
from slipstream.drafters.none import NoDrafter
from slipstream.engines.agreement import Agreement, Divergence
from slipstream.engines.completion import Completion
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed

DRAFTED = 4  # tokens of the text that one of the computations reads as a draft
DOUBT = 4.0  # factor on the spread of the computations, since four of them do not reach the extremes


def draft_speed(drafter: Drafter, sample: Completion, tokens: int = 32) -> float | None:
    """Tokens per second of the draft model by itself, greedy; None if the drafter is not a model."""
    model = drafter.own_model
    if model is None or not sample.token_ids:
        return None
    # the text does not matter for the speed; a small draft vocabulary has token ids of its own
    prompt = [token % model.vocab for token in sample.token_ids[:16]]
    row = Row(Request(prompt, Sampling(temperature=0), tokens))
    started = time.perf_counter()
    for _ in decode([row], model, NoDrafter(model.vocab), Greedy(), Fixed(0)):
        pass
    return len(row.output) / (time.perf_counter() - started)


def comparable(sample: Completion) -> bool:
    """Whether plain decoding must give the tokens of a completion."""
    return sample.repeatable is not None


def agreement(model: TorchModel, request: Request, speculative: Sequence[int], plain: Sequence[int]) -> Agreement:
    """Compare two outputs of one request. After a tie, plain decoding continues from speculation's choice and is
    compared again, up to the end or to a real difference."""
    if list(speculative) == list(plain):
        return Agreement(True)
    model, divergences, start = _twin(model), list[Divergence](), 0
    continued = list(plain)
    while (at := _first_difference(speculative, continued, start)) is not None:
        divergences.append(judge(model, request, speculative[:at], (speculative[at], continued[at])))
        if not divergences[-1].tie:
            break
        start = at + 1
        continued = _continued(model, request, speculative, start)
    return Agreement(False, divergences)


def _first_difference(ours: Sequence[int], theirs: Sequence[int], start: int) -> int | None:
    return next((i for i in range(start, min(len(ours), len(theirs))) if ours[i] != theirs[i]), None)


def _twin(model: TorchModel) -> TorchModel:
    """The same weights with a KV cache of its own: the engine's worker may still use the other cache."""
    return TorchModel(model.model, context=model.context, anatomy=model.anatomy, retained=0, invariant=model.invariant)


def _row(request: Request, output: Sequence[int], context: int) -> Row:
    row = Row(request)
    row.extend(output, [Origin.PLAIN] * len(output), context)
    return row


def _continued(model: TorchModel, request: Request, output: Sequence[int], size: int) -> list[int]:
    """The first `size` tokens of an output, and what plain decoding adds up to the next difference."""
    row = _row(request, output[:size], model.context)
    rule = rules.get("greedy" if request.sampling.temperature == 0 else "coupled")()
    for _ in decode([row], model, NoDrafter(model.vocab), rule, Fixed(0)):
        if row.output != list(output[: len(row.output)]):
            break
    return row.output


def judge(model: TorchModel, request: Request, before: Sequence[int], tokens: tuple[int, int]) -> Divergence:
    """How far apart two choices are after the output `before`, and the rounding error at this position."""
    row, values = _row(request, before, model.context), list[list[float]]()
    largest = 0.0
    for logits in _computations(model, request, row.tokens):
        largest = max(largest, float(logits.abs().max()))
        score = _choice_scores(logits, row)
        values.append([float(score[tokens[0]]), float(score[tokens[1]]), float(score.max())])
    ours, theirs, best = zip(*values, strict=True)
    behind = [max(b - a, b - c) for a, b, c in zip(ours, best, theirs, strict=True)]
    unit = torch.finfo(model.dtype).eps * largest
    numerics = math.inf if _edge(behind) else max(unit, DOUBT * _spread(behind))
    return Divergence(row.length - len(request.prompt), tokens, abs(ours[0] - theirs[0]), min(behind), numerics)


def _edge(behind: Sequence[float]) -> bool:
    """Whether some computations allow the choice and others cut it off (top-k, top-p, min-p): then it is a tie."""
    return any(map(math.isinf, behind)) and not all(map(math.isinf, behind))


def _spread(behind: Sequence[float]) -> float:
    return 0.0 if math.isinf(behind[0]) else max(behind) - min(behind)


def _choice_scores(logits: Float[Tensor, " vocab"], row: Row) -> Float[Tensor, " vocab"]:
    """The scores whose maximum is chosen: logits, or log p - log E, since argmin E / p is drawn."""
    params = row.request.sampling
    shaped = shape(logits[None], [(row, ())])
    if params.temperature == 0:
        return shaped[0].double()
    probs = sampling.law(shaped, [params]).dense()[0].double()
    key = fold(*torch.tensor([[row.seed], [row.sample], [row.length], [0], [int(Purpose.FIELD)]]))
    exponential = -torch.log(uniform(fold(key, torch.arange(len(probs)))))
    return probs.log() - exponential.log().to(probs.device)


def _computations(model: TorchModel, request: Request, text: Sequence[int]) -> list[Float[Tensor, " vocab"]]:
    """The logits after a text, computed in four ways: in one pass, in a pass over the last token alone, with the last
    few tokens as a draft, and in a batch with another row."""
    tail = min(DRAFTED, len(text) - 1)
    whole, cut, mates = [(text, 0)], [(text[: len(text) - tail], tail)], [(text[: len(text) // 2 + 1], 0), (text, 0)]
    return [
        _scored(model, request, text, whole),
        _scored(model, request, text, whole, ahead=True),
        _scored(model, request, text, cut),
        _scored(model, request, text, mates),
    ]


def _scored(
    model: TorchModel,
    request: Request,
    text: Sequence[int],
    rows: Sequence[tuple[Sequence[int], int]],
    ahead: bool = False,
) -> Float[Tensor, " vocab"]:
    """Logits of the last row after the text, its last few tokens drafted; `ahead` prefills all but one token."""
    opened = [Row(Request(list(tokens), max_tokens=0, condition=request.condition)) for tokens, _ in rows]
    drafted = rows[-1][1]
    token = torch.tensor(list(text[len(text) - drafted :]) if drafted else [], dtype=torch.long)
    draft = Draft(Tree.chains([0] * (len(rows) - 1) + [drafted]), token, OneHot(token, model.vocab))
    model.open(opened)
    try:
        while ahead and any(model.prefill(opened, len(text))):
            pass
        logits: Tensor = model.score(opened, draft).logits[-1].clone()
    finally:
        model.close(opened)
    return logits
