"""Chains of a drafter that knows the laws of all their positions beforehand: one law and one draw for all tokens.

The result is that of `grow`, which makes one law and one draw per level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.law import Law, OneHot
from slipstream.core.noise import Noise, Purpose, Site
from slipstream.core.shaping import needs_shaping
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.levels.grow import likeliest
from slipstream.drafters.vocabulary import DraftVocabulary

Node = tuple[int, int]
"""(row, depth)"""


def independent_chains(rows: Sequence[Row], budget: Sequence[Budget]) -> bool:
    """Whether all drafts are chains whose laws do not depend on the tokens drafted before."""
    rows_budget = zip(rows, budget, strict=True)
    return not any(spend.depth and (spend.shape or needs_shaping(row)) for row, spend in rows_budget)


def draft_chains(
    rows: Sequence[Row],
    budget: Sequence[Budget],
    noise: Noise,
    logits: Float[Tensor, "drafting depth draft_vocab"],
    vocabulary: DraftVocabulary,
    temperature: float | None = None,
) -> Draft:
    """Draft chains. `logits`: of the next tokens of each row whose depth is above 0.

    `temperature`: of the draft laws; None: the temperatures of the requests."""
    nodes, flat = chain_nodes(budget, logits)
    law = vocabulary.law_at(flat, [(rows[r], ()) for r, _ in nodes], temperature=temperature)
    return finished(rows, budget, nodes, law, picked(law, nodes, budget[nodes[0][0]].siblings, noise))


def chain_nodes(
    budget: Sequence[Budget], outputs: Float[Tensor, "drafting depth n"]
) -> tuple[list[Node], Float[Tensor, "nodes n"]]:
    """The nodes of all chains, row after row, and the outputs of each."""
    drafting, depth = [r for r, spend in enumerate(budget) if spend.depth], outputs.shape[1]
    nodes = [(r, d) for r in drafting for d in range(budget[r].depth)]
    flat = outputs.flatten(0, 1)
    if len(nodes) < len(flat):
        line = {r: n for n, r in enumerate(drafting)}
        flat = flat[torch.tensor([line[r] * depth + d for r, d in nodes], device=flat.device)]
    return nodes, flat


def picked(law: Law, nodes: Sequence[Node], siblings: Siblings | None, noise: Noise) -> list[int]:
    """The token of each node: the likeliest one, or one that is drawn. A one-hot law leaves no choice."""
    if isinstance(law, OneHot):
        return law.token.tolist()
    if siblings is Siblings.CHOSEN:
        return [token for (token,) in likeliest(law, 1)[1]]
    row, number = torch.tensor(nodes).T
    return noise.draw(law, Site(row, number, number), Purpose.DRAFT).tolist()


def finished(
    rows: Sequence[Row], budget: Sequence[Budget], nodes: Sequence[Node], law: Law, tokens: Sequence[int]
) -> Draft:
    """The draft of chains whose laws and tokens are known, up to their ends."""
    siblings = budget[nodes[0][0]].siblings
    chances = law.prob(torch.tensor(tokens, device=law.device)).tolist()
    stops = [budget[r].stop_below for r, _ in nodes]
    kept = list(_kept(rows, nodes, tokens, chances if siblings is Siblings.CHOSEN else _largest(law, stops), stops))
    lists = [(nodes[n][0], i - 1 if nodes[n][1] else -1) for i, n in enumerate(kept)]
    token, chance = torch.tensor([tokens[n] for n in kept], dtype=torch.long), torch.tensor([chances[n] for n in kept])
    if siblings is Siblings.CHOSEN:
        law = OneHot(token, law.vocab)
    elif len(kept) < len(nodes):
        law = law.select(torch.tensor(kept, dtype=torch.long, device=law.device))
    return Draft(Tree.from_lists(len(rows), lists), token, law, siblings, chance)


def _largest(law: Law, stop_below: Sequence[float]) -> list[float]:
    """The largest probability of each law. It is computed only where some budget has `stop_below`."""
    return [chance for (chance,) in likeliest(law, 1)[0]] if any(stop_below) else [1.0] * len(law)


def _kept(
    rows: Sequence[Row],
    nodes: Sequence[Node],
    tokens: Sequence[int],
    largest: Sequence[float],
    stop_below: Sequence[float],
) -> Iterator[int]:
    """The nodes before the first law below `stop_below` of their row, and up to its first end token."""
    ended = set[int]()
    for n, (r, _) in enumerate(nodes):
        if r not in ended and largest[n] >= stop_below[n]:
            yield n
            if tokens[n] not in rows[r].request.ends:
                continue
        ended.add(r)
