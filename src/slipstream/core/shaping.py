"""From raw logits to the logits a request asked for, at every drafted position with the history of its own path.

Bias, allowed and suppressed tokens, the minimum length, penalties and the grammar all depend on what stands before the
token. So each row of logits comes with its *place*: the row, and the drafted tokens between its committed end and here.
Target and draft go through the same function. Rows that ask for nothing are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from slipstream.core import sampling
from slipstream.core.array_types import Float, Tensor
from slipstream.core.law import Law
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Row

Place = tuple[Row, Sequence[int]]
UNSHAPED = Sampling()  # the model's own distribution


def law_at(logits: Float[Tensor, "n vocab"], places: Sequence[Place], ranking: bool = False) -> Law:
    """The law of the next token at each place. `ranking`: to choose candidates by, so a greedy request gets the law at
    temperature 1, which knows a second and a third one."""
    return sampling.law(shape(logits, places), [to_rank(row) if ranking else row.request.sampling for row, _ in places])


def to_rank(row: Row) -> Sampling:
    """The sampling whose law ranks a row's candidates."""
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
    """Apply what each request asked for; the argument is not changed."""
    asking = {row for row in {row for row, _ in places} if asks(row)}
    if not asking:
        return logits
    logits = logits.clone() if logits.dtype == torch.float64 else logits.float().clone()
    for i, (row, path) in enumerate(places):
        if row in asking:
            _shape_one(logits[i], row, path)
    return logits


def asks(row: Row) -> bool:
    request = row.request
    limited = row.constraint is not None or row.emitted < request.min_tokens
    return limited or request.sampling.shapes or request.processor is not None


def _shape_one(logits: Float[Tensor, " vocab"], row: Row, path: Sequence[int]) -> None:
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
    """Change the logits of tokens that were seen: by the repetition penalty first, as elsewhere, then by the others."""
    seen = torch.tensor(sorted({*prompt, *output}), dtype=torch.long, device=logits.device)
    value = logits[seen]
    logits[seen] = torch.where(value > 0, value / params.repetition_penalty, value * params.repetition_penalty)
    if output:
        ids, count = torch.tensor(output, device=logits.device).unique(return_counts=True)  # type: ignore[no-untyped-call]
        logits[ids] -= params.presence_penalty + params.frequency_penalty * count.to(logits.dtype)
