"""Tree rules: the candidates of a slot are tried in order against the residual of the target's law.

After a slot with target law p, candidates x_1, x_2, … were drawn, x_i from the law q_i *given the ones before it*.

- Let r_1 = p. Candidate i is accepted with probability min(1, r_i(x_i) / q_i(x_i)).
- If it is rejected, the residual becomes r_{i+1} = max(r_i - q_i, 0), normalised.
- If no candidate is accepted, the token is sampled from the last residual.
- After an accepted candidate, verification continues at its slot.

By the argument of the token rule, the token has law r_i given that the candidates before i were rejected. For i = 1
that is p. The argument holds for each way of drawing candidates:

chosen       The most probable tokens, q_i one-hot. Then r_i is p without the candidates before, and x_i is accepted
             with probability p(x_i) / (1 - p(x_1) - … - p(x_{i-1})). One of them is accepted with probability
             p(x_1) + p(x_2) + …, at any temperature.
replace      Sampled independently (arXiv 2305.09781, multi-step speculative sampling).
no_replace   Sampled without replacement, q_i = q without x_1 … x_{i-1}, normalised (arXiv 2402.12374). So no candidate
             repeats a rejected token. If fewer tokens are possible than asked for, all of them are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.device import DeviceRule, DeviceVerdict
from slipstream.core.interfaces import Verifier
from slipstream.core.law import Dense, Law, OneHot
from slipstream.core.noise import Noise, Purpose, Site
from slipstream.core.tree import Siblings
from slipstream.core.types import Draft, Verdict
from slipstream.core.verify.token import acceptance, residual

Judge = Callable[[Tensor, Draft, Tensor], tuple[Tensor, Tensor]]
"""(target probabilities [slots, vocab], draft, candidate nodes of each slot [slots, width], padded with -1) ->
(acceptance probability of each candidate, given that those before it are rejected [slots, width];
law of the token if all candidates are rejected [slots, vocab])."""


class Chosen(Verifier):
    name: ClassVar[str] = "chosen"
    lossless: ClassVar[bool] = True
    device_rule: ClassVar[DeviceRule | None] = DeviceRule(DeviceVerdict.OFFER, chains=False, trees=True)
    siblings: ClassVar[tuple[Siblings, ...]] = (Siblings.CHOSEN,)

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        if not isinstance(draft.law, OneHot):
            raise ValueError("the chosen rule needs chosen candidates, and these were drawn; use replace or no_replace")
        return walk(draft, target, noise, offer_one_hot)


class Replace(Verifier):
    name: ClassVar[str] = "replace"
    lossless: ClassVar[bool] = True
    siblings: ClassVar[tuple[Siblings, ...]] = (Siblings.IID, Siblings.CHOSEN)

    def __init__(self, judge: Judge | None = None) -> None:
        self._judge = judge or offer

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        return walk(draft, target, noise, self._judge)


class NoReplace(Verifier):
    name: ClassVar[str] = "no_replace"
    lossless: ClassVar[bool] = True
    siblings: ClassVar[tuple[Siblings, ...]] = (Siblings.DISTINCT, Siblings.CHOSEN)

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        return walk(draft, target, noise, offer)


def offer(
    probs: Float[Tensor, "slots vocab"], draft: Draft, nodes: Int[Tensor, "slots width"]
) -> tuple[Float[Tensor, "slots width"], Float[Tensor, "slots vocab"]]:
    """Try the candidates in order against the residual, which shrinks with every rejection."""
    remaining, accept = probs, probs.new_zeros(nodes.shape, dtype=torch.float64)
    for n in range(nodes.shape[1]):
        (offered,) = torch.nonzero(nodes[:, n] >= 0, as_tuple=True)
        node = nodes[offered, n]
        law, token, weight = draft.law.select(node), draft.token[node], remaining[offered]
        prob = acceptance(weight.gather(1, token[:, None])[:, 0], law.prob(token))
        accept[offered, n] = prob.double()
        remaining = remaining.index_copy(0, offered, residual(weight, law).to(remaining.dtype))
    return accept, remaining


def offer_one_hot(
    probs: Float[Tensor, "slots vocab"], draft: Draft, nodes: Int[Tensor, "slots width"]
) -> tuple[Float[Tensor, "slots width"], Float[Tensor, "slots vocab"]]:
    """`offer` for one-hot laws in closed form: two passes over the vocabulary for any number of candidates."""
    token = draft.token[nodes]
    new = (nodes >= 0) & ~_seen(token)
    mass = torch.where(new, probs.gather(1, token), 0).double()
    total = probs.sum(-1, keepdim=True, dtype=torch.float64)
    remaining = total - mass.cumsum(1) + mass
    accept = torch.where(remaining > 0, mass / torch.where(remaining > 0, remaining, 1), 0).clamp(max=1)
    excess = probs.scatter(1, torch.where(nodes >= 0, token, token[:, :1]), 0)
    excess = torch.where(excess.sum(-1, keepdim=True) > 0, excess, probs)
    return accept, excess / excess.sum(-1, keepdim=True, dtype=torch.float64).to(excess.dtype)


def _seen(token: Int[Tensor, "slots width"]) -> Tensor:
    """Whether each token equals an earlier candidate of its slot."""
    same = token[:, :, None] == token[:, None, :]
    return same.tril(-1).any(-1)


def walk(draft: Draft, target: Law, noise: Noise, judge: Judge) -> Verdict:
    """Verify trees from the committed ends down, all rows one level at a time.

    One draw per slot decides which of its candidates is accepted, or none. A row ends at a slot without candidates, or
    when all candidates of a slot are rejected."""
    tree, slot = draft.tree, list(range(draft.tree.rows))  # the slot that each row has reached
    tokens, node_index = draft.token.tolist(), tree.node.tolist()
    paths: list[list[int]] = [[] for _ in slot]
    rejected: list[tuple[int, Tensor]] = []  # row, and the law of its token
    rows = [r for r in slot if tree.children[r]]
    while rows:
        candidates = [tree.children[slot[r]] for r in rows]
        probs = target.select(_ints([slot[r] for r in rows], draft)).dense()
        accept, residuals = judge(probs, draft, _table(candidates, draft))
        first = _ints([node_index[nodes[0]] for nodes in candidates], draft)
        site = Site(_ints(rows, draft), first, torch.full_like(first, len(paths[rows[0]])))
        choice = noise.draw(Dense(outcomes(accept)), site, Purpose.ACCEPT).tolist()
        next_rows = []
        for i, (r, nodes) in enumerate(zip(rows, candidates, strict=True)):
            if not choice[i]:
                rejected.append((r, residuals[i]))
                continue
            token = tokens[nodes[choice[i] - 1]]
            paths[r].append(
                next(node for node in nodes if tokens[node] == token)
            )  # of equal tokens the first has children
            slot[r] = tree.rows + paths[r][-1]
            next_rows += [r] if tree.children[slot[r]] else []
        rows = next_rows
    return _settle(draft, target, noise, paths, rejected)


def outcomes(accept: Float[Tensor, "slots width"]) -> Float[Tensor, "slots outcomes"]:
    """The probability that candidate i is accepted, as outcome i + 1; outcome 0 means that none is.

    So the index of an outcome does not depend on the width of other rows of the batch."""
    rejected = (1 - accept).cumprod(1)
    before = torch.cat([torch.ones_like(accept[:, :1]), rejected[:, :-1]], 1)
    return torch.cat([rejected[:, -1:], accept * before], 1)


def _settle(
    draft: Draft, target: Law, noise: Noise, paths: list[list[int]], rejected: list[tuple[int, Tensor]]
) -> Verdict:
    """Draw the token after each path: from the target's law, or from the residual of the rejected candidates."""
    tree, device = draft.tree, draft.token.device
    width = max(map(len, paths), default=0)
    path = torch.tensor([line + [-1] * (width - len(line)) for line in paths], device=device).long()
    path = path.reshape(tree.rows, width)
    probs = target.select(tree.end(path)).dense()
    bonus = torch.ones(tree.rows, dtype=torch.bool, device=device)
    if rejected:
        cut = _ints([r for r, _ in rejected], draft)
        probs = probs.index_copy(0, cut, torch.stack([law for _, law in rejected]).to(probs.dtype))
        bonus = bonus.index_fill(0, cut, value=False)
    accepted = (path >= 0).sum(1)
    site = Site(torch.arange(tree.rows, device=device), accepted, accepted)
    return Verdict(path, noise.draw(Dense(probs), site, Purpose.EMIT), bonus)


def _table(lines: list[list[int]], draft: Draft) -> Int[Tensor, "slots width"]:
    width = max(map(len, lines))
    return torch.tensor([line + [-1] * (width - len(line)) for line in lines], device=draft.token.device)


def _ints(values: list[int], draft: Draft) -> Int[Tensor, " n"]:
    return torch.tensor(values, dtype=torch.long, device=draft.token.device)
