"""From logits to a law: temperature, then top-k, then top-p, then min-p. One function for target and draft.

Tokens with equal logits are kept or dropped together, so a law does not depend on the order of a sort. Temperature 0 is
greedy: all probability on the largest logit, and on the lowest id among equal logits. A temperature below the smallest
normal float32 number is treated as 0, because logits divided by it would become NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.core.checks import integer, integers, number, shown
from slipstream.core.law import Dense, Law, OneHot

MIN_TEMPERATURE = torch.finfo(torch.float32).tiny  # smaller temperatures become 0
MAX_TEMPERATURE = torch.finfo(torch.float32).max  # larger ones are infinite in float32, and -inf / inf is NaN


@dataclass(frozen=True)
class Sampling:
    """How to sample the next token. The defaults are the model's own distribution."""

    temperature: float = 1.0  # 0: greedy; below `MIN_TEMPERATURE` it becomes 0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None  # None: a random seed per request
    repetition_penalty: float = 1.0  # a seen token's logit is divided by it if positive, multiplied by it if negative
    presence_penalty: float = 0.0  # subtracted once from the logit of each token in the output
    frequency_penalty: float = 0.0  # subtracted from a token's logit for each of its occurrences in the output
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to the logits of these tokens
    allowed_token_ids: frozenset[int] | None = None  # None: every token
    suppress_tokens: frozenset[int] = frozenset()  # token ids that are never drawn

    def __post_init__(self) -> None:
        self._coerce()
        self._check_logit_changes()
        if not 0 <= self.temperature <= MAX_TEMPERATURE:
            legal = f"0 (greedy) or a positive number up to {MAX_TEMPERATURE:.2g}"
            raise ValueError(f"temperature is {self.temperature}; it must be {legal}")
        if self.temperature < MIN_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be 0 (no limit) or more")
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be between 0 and 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}; it must be between 0 and 1")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}; it must be between 0 and 2**63 - 1")

    def _coerce(self) -> None:
        """Convert every field to its declared type, or raise ValueError with its name."""
        names = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        values: dict[str, Any] = {name: number(name, getattr(self, name)) for name in names}
        values["top_k"] = integer("top_k", self.top_k)
        values["seed"] = None if self.seed is None else integer("seed", self.seed)
        allowed, suppressed = self.allowed_token_ids, self.suppress_tokens
        values["allowed_token_ids"] = None if allowed is None else frozenset(integers("allowed_token_ids", allowed))
        values["suppress_tokens"] = frozenset(() if suppressed is None else integers("suppress_tokens", suppressed))
        bias = {} if self.logit_bias is None else self.logit_bias
        if not isinstance(bias, Mapping):
            raise ValueError(f"logit_bias is {shown(bias)}; it must be a dictionary from token ids to numbers")
        values["logit_bias"] = {
            integer("a token of logit_bias", token): number("a value of logit_bias", value)
            for token, value in bias.items()
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_logit_changes(self) -> None:
        """Refuse penalties, biases and token sets that leave no distribution."""
        if not (self.repetition_penalty > 0 and math.isfinite(self.repetition_penalty)):
            raise ValueError(
                f"repetition_penalty is {self.repetition_penalty}; it must be a positive number, 1 for none"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a number, 0 for none")
        if not all(math.isfinite(value) for value in self.logit_bias.values()):
            raise ValueError("logit_bias holds a value that is not finite; exclude a token with suppress_tokens")
        if self.allowed_token_ids is not None and not self.allowed_token_ids - self.suppress_tokens:
            raise ValueError("allowed_token_ids and suppress_tokens leave no token to draw")

    @property
    def truncates(self) -> bool:
        """Whether top-k, top-p or min-p is set."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @cached_property
    def penalises(self) -> bool:
        """Whether any penalty is set."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @cached_property
    def changes_logits(self) -> bool:
        """Whether penalties, biases or token sets change the logits. Cached, because it is read in every cycle."""
        restricted = self.allowed_token_ids is not None or bool(self.suppress_tokens)
        return self.penalises or bool(self.logit_bias) or restricted


def exponentials(scaled: Float[Tensor, "n vocab"]) -> Float[Tensor, "n 1"]:
    return _total(scaled.exp_())


def truncated(probs: Float[Tensor, "n vocab"], sampling: Sequence[Sampling]) -> Float[Tensor, "n vocab"]:
    """Probabilities after top-p, then min-p."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=probs.dtype, device=probs.device)[:, None]

    if any(s.top_p < 1 for s in sampling):
        probs = keep_only(probs, _top_p(probs, column([s.top_p for s in sampling])))
    if any(s.min_p > 0 for s in sampling):
        probs = keep_only(probs, probs >= column([s.min_p for s in sampling]) * probs.amax(-1, keepdim=True))
    return probs


class LawKernels(NamedTuple):
    """Functions that compute parts of laws."""

    # replaces numbers, [n, vocab], by their exponentials; returns the sums of these, [n, 1]
    exponentials: Callable[[Tensor], Tensor] = exponentials
    # top-p and min-p; may change the given probabilities
    truncated: Callable[[Tensor, Sequence[Sampling]], Tensor] = truncated


TORCH = LawKernels()


def law(logits: Float[Tensor, "n vocab"], sampling: Sequence[Sampling], kernels: LawKernels = TORCH) -> Law:
    """The law of the next token for each row of logits, under that row's own parameters."""
    assert len(logits) == len(sampling)
    logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    if all(s.temperature == 0 for s in sampling):
        token, best_logits = _argmax(logits)
        _check(best_logits)
        return OneHot(token, logits.shape[-1])
    best = logits.amax(-1, keepdim=True)
    _check(best[:, 0].tolist())

    greedy = [s.temperature == 0 for s in sampling]
    scaled = (logits - best).div_(logits.new_tensor([s.temperature or 1.0 for s in sampling])[:, None])
    if any(0 < s.top_k < logits.shape[-1] for s in sampling):
        scaled = scaled.masked_fill(~_top_k(scaled, [s.top_k for s in sampling]), -math.inf)
    total, probs = kernels.exponentials(scaled), scaled  # in place: allocating memory costs more than the arithmetic
    probs.div_(total)
    if any(s.top_p < 1 or s.min_p > 0 for s in sampling):
        probs = kernels.truncated(probs, sampling)
    if any(greedy):
        chosen = OneHot(likeliest(logits), logits.shape[-1]).dense().to(probs.dtype)
        probs = torch.where(torch.tensor(greedy, device=probs.device)[:, None], chosen, probs)
    return Dense(probs)


def _check(best: Sequence[float]) -> None:
    """Raise FloatingPointError if some logits define no law."""
    if not all(map(math.isfinite, best)):
        raise FloatingPointError("logits hold NaN, infinity or no possible token, so there is no law to draw from")


def likeliest(logits: Float[Tensor, "n vocab"]) -> Int[Tensor, " n"]:
    """The token with the largest logit; the lowest id among equal logits."""
    return _argmax(logits)[0]


def _argmax(logits: Float[Tensor, "n vocab"]) -> tuple[Int[Tensor, " n"], list[float]]:
    """Index and value of the largest logit of each row. On a CPU numpy's argmax is six times as fast as torch's."""
    if logits.is_cpu:
        table = logits.detach().numpy()
        where = table.argmax(-1)
        return torch.from_numpy(where), [table[i, at].item() for i, at in enumerate(where.tolist())]
    token = logits.argmax(-1)
    return token, logits.gather(1, token[:, None])[:, 0].tolist()


def _top_k(logits: Float[Tensor, "n vocab"], k: list[int]) -> Bool[Tensor, "n vocab"]:
    """Every token whose logit is at least the k-th largest."""
    vocab = logits.shape[-1]
    limits = [min(x, vocab) if x else vocab for x in k]
    widest = max(x for x in limits if x < vocab)
    ranked = logits.topk(widest).values
    index = torch.tensor([min(x, widest) - 1 for x in limits], device=logits.device)[:, None]
    free = torch.tensor([x == vocab for x in limits], device=logits.device)[:, None]
    return free | (logits >= ranked.gather(1, index))


def _top_p(probs: Float[Tensor, "n vocab"], mass: Float[Tensor, "n 1"]) -> Bool[Tensor, "n vocab"]:
    """The most probable tokens up to the first at which their sum reaches `mass`, and all tokens equal to that one."""
    free = mass >= 1
    for width in (min(512, probs.shape[-1]), probs.shape[-1]):  # sort everything only if 512 tokens are not enough
        ranked = probs.topk(width).values
        below = (ranked.cumsum(-1, dtype=torch.float64) < mass).sum(-1, keepdim=True)
        if bool((free | (below < width)).all()):
            break
    return free | (probs >= ranked.gather(1, below.clamp(max=width - 1)))


def keep_only(probs: Float[Tensor, "n vocab"], keep: Bool[Tensor, "n vocab"]) -> Float[Tensor, "n vocab"]:
    """Probabilities of the kept tokens, normalised. Rows that keep all tokens stay unchanged to the bit."""
    return torch.where(keep.all(-1, keepdim=True), probs, normalise(probs * keep))


def normalise(weights: Float[Tensor, "n vocab"]) -> Float[Tensor, "n vocab"]:
    """Weights divided by their sum. The sum is float64: over a large vocabulary float32 loses the fifth digit."""
    return weights / _total(weights)


def _total(weights: Float[Tensor, "n vocab"]) -> Float[Tensor, "n 1"]:
    return weights.sum(-1, keepdim=True, dtype=torch.float64).to(weights.dtype)
