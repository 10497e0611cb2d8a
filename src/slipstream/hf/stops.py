"""Where a row ends: end tokens and the maximum length, which the batch checks, and other criteria."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteriaList
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, StopStringCriteria

from slipstream.hf.processors import read_ends


@dataclass(frozen=True)
class StopConditions:
    """End tokens, the maximum length, and all other criteria."""

    ends: frozenset[int]
    longest: int  # prompt and padding included
    criteria: StoppingCriteriaList


def read_stops(criteria: Sequence[Any], vocab: int, strings: Any, tokenizer: Any) -> StopConditions:
    """Sort the criteria. Types are compared exactly, because a subclass may behave differently."""
    ends, longest, rest = frozenset[int](), [], StoppingCriteriaList()
    for criterion in criteria:
        if type(criterion) is EosTokenCriteria:
            ends |= read_ends(criterion.eos_token_id, vocab)
        elif type(criterion) is MaxLengthCriteria:
            longest.append(criterion.max_length)
        else:
            rest.append(criterion)
    if strings is not None:
        rest.append(_stop_strings(strings, tokenizer))
    return StopConditions(ends, min(longest), rest)


def _stop_strings(strings: Any, tokenizer: Any) -> Any:
    if tokenizer is None:
        raise ValueError("stop_strings are given without their tokenizer; pass tokenizer=... to generate as well")
    return StopStringCriteria(stop_strings=strings, tokenizer=tokenizer)


def padding(config: Any, stops: StopConditions, rows: int) -> int:
    """The token that pads a row that ended early. If none is configured, the first end token, as in transformers."""
    for token in (config.pad_token_id, config.eos_token_id):
        if token is not None:
            return int(torch.as_tensor(token).reshape(-1)[0])
    if stops.criteria and rows > 1:
        raise ValueError("pad_token_id is not set, and a row that stops before the others is padded with it; pass one")
    return 0
