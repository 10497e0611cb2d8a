"""What a comparison with plain decoding says: the draft model's own speed, and where two outputs part, and why.

Outside invariant mode a pass over many tokens and a pass over one round differently. Where the two best tokens of a
place are closer than that, speculation and plain decoding may choose differently, and both are right: a flipped tie.
Anything else is a bug. So every place where they part is computed again in several ways; what these disagree by is
what numerics are worth there, and a choice that lies further from the best than that is a real difference.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from slipstream.core import sampling
from slipstream.core.array_types import Float, Tensor
from slipstream.core.law import OneHot
from slipstream.core.loop import decode
from slipstream.core.noise import Purpose, fold, uniform
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.shaping import shape
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Origin, Request, Row
from slipstream.core.verify.match import Greedy
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.none import NoDrafter
from slipstream.engines.base import Completion
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy import Fixed

DRAFTED = 4  # tokens of the text that one way of computing a place reads as a draft
DOUBT = 4.0  # times what the ways disagree by: four ways do not find the extremes


def draft_speed(engine: NativeEngine, like: Completion, tokens: int = 32) -> float | None:
    """Tokens per second of the draft model by itself, greedy; None where no model drafts."""
    drafter = engine.drafter(engine.drafter_name)
    if not isinstance(drafter, DraftModel) or not like.token_ids:
        return None
    # what it says does not matter for its speed, and a small vocabulary numbers its tokens by itself
    prompt = [token % drafter.model.vocab for token in like.token_ids[:16]]
    row = Row(Request(prompt, Sampling(temperature=0), tokens))
    started = time.perf_counter()
    for _ in decode([row], drafter.model, NoDrafter(drafter.model.vocab), Greedy(), Fixed(0)):
        pass
    return len(row.output) / (time.perf_counter() - started)


@dataclass(frozen=True)
class Divergence:
    """A place where plain decoding chose another token. `gap` is between the two choices: of logits, or at a
    temperature of the logarithms that the race is decided by. Within `numerics` of the best, both are right."""

    position: int  # in the output
    tokens: tuple[int, int]  # speculation's, plain decoding's
    gap: float
    behind: float  # how far the worse of the two is from the best
    numerics: float

    @property
    def tie(self) -> bool:
        return self.behind <= self.numerics


@dataclass(frozen=True)
class Agreement:
    """Every place where plain decoding, given the same text so far, chooses otherwise; none follows a real one."""

    identical: bool
    partings: list[Divergence] = field(default_factory=list)

    @property
    def ties(self) -> int:
        return sum(parting.tie for parting in self.partings)

    @property
    def real(self) -> Divergence | None:
        return next((parting for parting in self.partings if not parting.tie), None)


def comparable(done: Completion) -> bool:
    """Whether plain decoding must give the tokens of a completion."""
    return done.repeatable is not None


def agreement(model: TorchModel, request: Request, speculative: Sequence[int], plain: Sequence[int]) -> Agreement:
    """Compare two outputs of one request. Where they part at a tie, plain decoding is taken up behind speculation's
    choice and compared again, to the end or to a real difference."""
    if list(speculative) == list(plain):
        return Agreement(True)
    model, partings, start = _twin(model), list[Divergence](), 0
    rest = list(plain)
    while (at := _parts(speculative, rest, start)) is not None:
        partings.append(judge(model, request, speculative[:at], (speculative[at], rest[at])))
        if not partings[-1].tie:
            break
        start = at + 1
        rest = _continued(model, request, speculative, start)
    return Agreement(False, partings)


def _parts(ours: Sequence[int], theirs: Sequence[int], start: int) -> int | None:
    return next((i for i in range(start, min(len(ours), len(theirs))) if ours[i] != theirs[i]), None)


def _twin(model: TorchModel) -> TorchModel:
    """The same weights with a cache of their own: the engine's worker may still be tidying up the other."""
    return TorchModel(model.model, context=model.context, anatomy=model.anatomy, retained=0, invariant=model.invariant)


def _row(request: Request, output: Sequence[int], context: int) -> Row:
    row = Row(request)
    row.extend(output, [Origin.PLAIN] * len(output), context)
    return row


def _continued(model: TorchModel, request: Request, output: Sequence[int], size: int) -> list[int]:
    """The first `size` tokens of an output, and what plain decoding adds until it parts from the rest."""
    row = _row(request, output[:size], model.context)
    rule = rules.get("greedy" if request.sampling.temperature == 0 else "coupled")()
    for _ in decode([row], model, NoDrafter(model.vocab), rule, Fixed(0)):
        if row.output != list(output[: len(row.output)]):
            break
    return row.output


def judge(model: TorchModel, request: Request, before: Sequence[int], tokens: tuple[int, int]) -> Divergence:
    """How far apart two choices are after the output `before`, and what numerics are worth there."""
    row, values = _row(request, before, model.context), list[list[float]]()
    size = 0.0
    for logits in _ways(model, request, row.tokens):
        size = max(size, float(logits.abs().max()))
        worth = _worth(logits, row)
        values.append([float(worth[tokens[0]]), float(worth[tokens[1]]), float(worth.max())])
    ours, theirs, best = zip(*values, strict=True)
    behind = [max(b - a, b - c) for a, b, c in zip(ours, best, theirs, strict=True)]
    unit = torch.finfo(model.dtype).eps * size
    numerics = math.inf if _edge(behind) else max(unit, DOUBT * _spread(behind))
    return Divergence(row.length - len(request.prompt), tokens, abs(ours[0] - theirs[0]), min(behind), numerics)


def _edge(behind: Sequence[float]) -> bool:
    """A choice that some ways allow and others cut off (top-k, top-p, min-p): the edge itself is the tie."""
    return any(map(math.isinf, behind)) and not all(map(math.isinf, behind))


def _spread(behind: Sequence[float]) -> float:
    return 0.0 if math.isinf(behind[0]) else max(behind) - min(behind)


def _worth(logits: Float[Tensor, " vocab"], row: Row) -> Float[Tensor, " vocab"]:
    """What the choice is the largest of: logits, or log p - log E, whose largest wins the race argmin E / p."""
    wish = row.request.sampling
    shaped = shape(logits[None], [(row, ())])
    if wish.temperature == 0:
        return shaped[0].double()
    probs = sampling.law(shaped, [wish]).dense()[0].double()
    key = fold(*torch.tensor([[row.seed], [row.sample], [row.length], [0], [int(Purpose.FIELD)]]))
    wait = -torch.log(uniform(fold(key, torch.arange(len(probs)))))
    return probs.log() - wait.log().to(probs.device)


def _ways(model: TorchModel, request: Request, text: Sequence[int]) -> list[Float[Tensor, " vocab"]]:
    """The logits after a text: read at once, the last token by itself, the last few as a draft, beside a batch mate."""
    tail = min(DRAFTED, len(text) - 1)
    whole, cut, mates = [(text, 0)], [(text[: len(text) - tail], tail)], [(text[: len(text) // 2 + 1], 0), (text, 0)]
    return [
        _scored(model, text, whole),
        _scored(model, text, whole, ahead=True),
        _scored(model, text, cut),
        _scored(model, text, mates),
    ]


def _scored(
    model: TorchModel, text: Sequence[int], rows: Sequence[tuple[Sequence[int], int]], ahead: bool = False
) -> Float[Tensor, " vocab"]:
    """Logits after the text: the last row's, its last few tokens drafted; `ahead` reads all but one beforehand."""
    opened = [Row(Request(list(tokens), max_tokens=0)) for tokens, _ in rows]
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
