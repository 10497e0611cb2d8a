"""Chains of a stack with a Markov head, by few passes over all their tokens.

The token of a node is a function of the token before it, because the noise of a node is fixed. At first the tokens are
guessed: the likeliest without the head. Then every node whose previous token has changed is computed again, all such
nodes together, until none is left. The first n tokens of a chain are right after n passes. Mostly two or three passes
are enough, because the head seldom changes the token. Each pass reads the head's large matrix once.

The result is that of `grow`, which takes as many passes as there are levels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.law import Law, Sparse, concat
from slipstream.core.noise import CounterNoise, Noise
from slipstream.core.sampling import likeliest
from slipstream.core.tree import Siblings
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.dflash.chain import chain_nodes, finished, picked
from slipstream.drafters.dflash.markov import MarkovLogits
from slipstream.drafters.vocabulary import DraftVocabulary


def noise_is_fixed(budget: Sequence[Budget], noise: Noise) -> bool:
    """Whether the token of a node depends on its law only, however often it is drawn."""
    chosen = all(spend.siblings is Siblings.CHOSEN for spend in budget if spend.depth)
    return chosen or isinstance(noise, CounterNoise)


def draft_markov_chains(
    rows: Sequence[Row],
    budget: Sequence[Budget],
    noise: Noise,
    outputs: Float[Tensor, "drafting depth draft_vocab_and_width"],
    markov: MarkovLogits,
    vocabulary: DraftVocabulary,
    temperature: float | None = None,
) -> Draft:
    """Draft chains. `outputs`: of the stack for each row whose depth is above 0. The noise must be fixed.

    `temperature`: of the draft laws; None: the temperatures of the requests."""
    nodes, flat = chain_nodes(budget, outputs)
    siblings, (logits, slot) = budget[nodes[0][0]].siblings, markov.parts(flat)
    tokens: list[int] = vocabulary.ids[likeliest(logits)].tolist()  # guessed
    used: list[int] = [-1] * len(nodes)  # the token before each node in the last pass
    law: Law | None = None
    while True:
        before = [tokens[n - 1] if d else rows[r].tokens[-1] for n, (r, d) in enumerate(nodes)]
        changed = [n for n in range(len(nodes)) if before[n] != used[n]]
        if not changed:
            break
        at = _index(changed, logits.device)
        corrected = markov.after(logits[at], slot[at], [before[n] for n in changed])
        new = vocabulary.law_at(corrected, [(rows[nodes[n][0]], ()) for n in changed], temperature=temperature)
        for n, token in zip(changed, picked(new, [nodes[n] for n in changed], siblings, noise), strict=True):
            tokens[n] = token
        law, used = new if law is None else _replaced(law, changed, new), before
    assert law is not None, "there are nodes"
    return finished(rows, budget, nodes, law, tokens)


def _index(chosen: Sequence[int], device: torch.device) -> slice | Tensor:
    """The index of some nodes in ascending order. Neighbours are a slice, which copies nothing."""
    first, end = chosen[0], chosen[-1] + 1
    return slice(first, end) if end - first == len(chosen) else torch.tensor(chosen, device=device)


def _replaced(law: Law, changed: Sequence[int], new: Law) -> Law:
    """A batch of laws with others in some places."""
    if isinstance(law, Sparse) and isinstance(new, Sparse) and law.ids.data_ptr() == new.ids.data_ptr():
        law.probs[_index(changed, law.device)] = new.probs
        return law
    order = list(range(len(law)))
    for i, n in enumerate(changed):
        order[n] = len(law) + i
    return concat([law, new]).select(torch.tensor(order, device=law.device))
