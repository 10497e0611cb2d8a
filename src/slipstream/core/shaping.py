"""Logits processing: applies a request's penalties, biases, token sets, grammar and processor to raw logits.

These depend on the tokens before the position. So each row of logits comes with its *place*: the row, and the drafted
tokens between its committed end and the position. Target and draft logits go through the same function. Rows without
such settings are not changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from slipstream.core import sampling
from slipstream.core.array_types import Float, Tensor
from slipstream.core.law import Law
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Row

Place = tuple[Row, Sequence[int]]
UNSHAPED = Sampling()  # the model's own distribution


def law_at(
    logits: Float[Tensor, "n vocab"],
    places: Sequence[Place],
    ranking: bool = False,
    temperature: float | None = None,
) -> Law:
    """The law of the next token at each place. The other arguments are those of `law_params`."""
    return sampling.law(shape(logits, places), law_params(places, ranking, temperature))


def law_params(places: Sequence[Place], ranking: bool = False, temperature: float | None = None) -> list[Sampling]:
    """The sampling parameters of the law at each place.

    `ranking`: the law is used to rank candidates, so greedy requests get the law at temperature 1. `temperature`: of
    a draft law, in place of the temperatures of requests that sample."""
    params = [ranking_sampling(row) if ranking else row.request.sampling for row, _ in places]
    if temperature is None:
        return params
    return [param if param.temperature == 0 else replace(param, temperature=temperature) for param in params]


def ranking_sampling(row: Row) -> Sampling:
    """The sampling parameters whose law ranks a row's candidates: a one-hot law cannot rank them."""
    sampling = row.request.sampling
    return UNSHAPED if sampling.temperature == 0 else sampling


def places(rows: Sequence[Row], tree: Tree, token: Sequence[int]) -> list[Place]:
    """The place of every slot."""
    places_of_rows: list[Place] = [(row, ()) for row in rows]
    for i, (r, p) in enumerate(tree.lists):
        row, path = places_of_rows[r if p < 0 else len(rows) + p]
        places_of_rows.append((row, (*path, token[i])))
    return places_of_rows


def shape(logits: Float[Tensor, "n vocab"], places: Sequence[Place]) -> Float[Tensor, "n vocab"]:
    """Logits after each row's settings. The argument is not changed."""
    changed = {row for row in {row for row, _ in places} if needs_shaping(row)}
    if not changed:
        return logits
    logits = logits.clone() if logits.dtype == torch.float64 else logits.float().clone()
    for i, (row, path) in enumerate(places):
        if row in changed:
            _shape_place(logits[i], row, path)
    return logits


def needs_shaping(row: Row) -> bool:
    """Whether anything but temperature and truncation changes the logits of a row."""
    request = row.request
    limited = row.constraint is not None or row.emitted < request.min_tokens
    return limited or request.sampling.changes_logits or request.processor is not None


def needs_callback(row: Row) -> bool:
    """Whether a grammar or a logits processor changes the logits of a row."""
    return row.constraint is not None or row.request.processor is not None


def only_processed(row: Row) -> bool:
    """Whether a row's logits processor is all that changes its logits, beside temperature and truncation."""
    request = row.request
    limited = row.constraint is not None or row.emitted < request.min_tokens
    return request.processor is not None and not limited and not request.sampling.changes_logits


def _shape_place(logits: Float[Tensor, " vocab"], row: Row, path: Sequence[int]) -> None:
    request, params = row.request, row.request.sampling
    if params.penalises:
        _penalise(logits, params, request.prompt, [*row.output, *path])
    if params.logit_bias:
        logits[list(params.logit_bias)] += logits.new_tensor(list(params.logit_bias.values()))
    if params.allowed_token_ids is not None:
        keep = logits.new_zeros(logits.shape, dtype=torch.bool)
        keep[list(params.allowed_token_ids)] = True
        logits.masked_fill_(~keep, -math.inf)
    if params.suppress_tokens:
        logits[list(params.suppress_tokens)] = -math.inf
    if row.emitted + len(path) < request.min_tokens:
        logits[list(request.ends)] = -math.inf
    if request.processor is not None:
        logits.copy_(request.processor([*row.tokens, *path], logits))
    if row.constraint is not None and (keep_tokens := row.constraint.allowed(path)) is not None:
        logits.masked_fill_(~keep_tokens.to(logits.device), -math.inf)


def _penalise(logits: Float[Tensor, " vocab"], params: Sampling, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Apply the repetition penalty to tokens of prompt and output, then the other penalties to tokens of the output."""
    seen = torch.tensor(sorted({*prompt, *output}), dtype=torch.long, device=logits.device)
    value = logits[seen]
    logits[seen] = torch.where(value > 0, value / params.repetition_penalty, value * params.repetition_penalty)
    if output:
        ids, count = torch.tensor(output, device=logits.device).unique(return_counts=True)  # type: ignore[no-untyped-call]
        logits[ids] -= params.presence_penalty + params.frequency_penalty * count.to(logits.dtype)
