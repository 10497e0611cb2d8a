"""Where a row ends: end tokens and the greatest length, which the batch keeps, and criteria that are asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteriaList
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, StopStringCriteria

from slipstream.hf.chain import read_ends


@dataclass(frozen=True)
class Stops:
    ends: frozenset[int]
    longest: int  # prompt and padding included
    criteria: StoppingCriteriaList


def read_stops(criteria: Sequence[Any], vocab: int, strings: Any, tokenizer: Any) -> Stops:
    """Types are compared exactly, since a subclass may do anything."""
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
    return Stops(ends, min(longest), rest)


def _stop_strings(strings: Any, tokenizer: Any) -> Any:
    if tokenizer is None:
        raise ValueError("stop_strings are given without their tokenizer; pass tokenizer=... to generate as well")
    return StopStringCriteria(stop_strings=strings, tokenizer=tokenizer)


def padding(config: Any, stops: Stops, rows: int) -> int:
    """What fills a row that ended before the others: transformers takes the first end token where nothing is said."""
    for said in (config.pad_token_id, config.eos_token_id):
        if said is not None:
            return int(torch.as_tensor(said).reshape(-1)[0])
    if stops.criteria and rows > 1:
        raise ValueError("pad_token_id is not set, and a row that stops before the others is padded with it; pass one")
    return 0
