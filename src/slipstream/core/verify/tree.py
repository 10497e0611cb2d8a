"""Tree rules: candidates of a position are offered one by one to the residual of the target's law.

After a slot with target law p, candidates x_1, x_2, … were drawn, x_i from the law q_i *given the ones before it*. With
r_1 = p, candidate i is accepted with probability min(1, r_i(x_i) / q_i(x_i)); if it is rejected, what it should have
brought is still owed, r_{i+1} = max(r_i - q_i, 0), normalised. When none is accepted, the token comes from what is left
in the end. By the argument of the token rule the token has law r_i from candidate i on, whatever the rejected ones
were, hence law p; and an accepted candidate is where the walk goes on. Three ways of drawing, one argument:

chosen       the drafter's best guesses, q_i one-hot. Then r_i is p without the candidates before, and x_i is accepted
             with probability p(x_i) / (1 - p(x_1) - … - p(x_{i-1})): together they catch all of the target's mass on
             them, at any temperature.
replace      drawn independently (arXiv 2305.09781, multi-step speculative sampling).
no_replace   drawn without replacement, q_i = q without x_1 … x_{i-1}, normalised (arXiv 2402.12374): no candidate is
             ever wasted on a token that was just rejected. Where fewer tokens are possible than wanted, all are drawn.
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
"""Target's laws [slots, vocab] and the candidates after each slot [slots, width], -1 beyond the last one: how likely
each is accepted once those before it are rejected, and the law of the token where all of them are."""


class Chosen(Verifier):
    name: ClassVar[str] = "chosen"
    lossless: ClassVar[bool] = True
    device_rule: ClassVar[DeviceRule | None] = DeviceRule(DeviceVerdict.OFFER, chains=False, trees=True)
    siblings: ClassVar[tuple[Siblings, ...]] = (Siblings.CHOSEN,)

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        if not isinstance(draft.law, OneHot):
            raise ValueError("the chosen rule needs chosen candidates, and these were drawn; use replace or no_replace")
        return walk(draft, target, noise, catch)


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
    """One candidate after the other: accepted against what is left, or what is left gets smaller."""
    left, accept = probs, probs.new_zeros(nodes.shape, dtype=torch.float64)
    for n in range(nodes.shape[1]):
        (offered,) = torch.nonzero(nodes[:, n] >= 0, as_tuple=True)
        node = nodes[offered, n]
        law, token, weight = draft.law.select(node), draft.token[node], left[offered]
        chance = acceptance(weight.gather(1, token[:, None])[:, 0], law.prob(token))
        accept[offered, n] = chance.double()
        left = left.index_copy(0, offered, residual(weight, law).to(left.dtype))
    return accept, left


def catch(
    probs: Float[Tensor, "slots vocab"], draft: Draft, nodes: Int[Tensor, "slots width"]
) -> tuple[Float[Tensor, "slots width"], Float[Tensor, "slots vocab"]]:
    """`offer` for one-hot laws in closed form: the vocabulary is gone through twice, however many candidates."""
    token = draft.token[nodes]
    new = (nodes >= 0) & ~_seen(token)
    mass = torch.where(new, probs.gather(1, token), 0).double()
    total = probs.sum(-1, keepdim=True, dtype=torch.float64)
    left = total - mass.cumsum(1) + mass
    accept = torch.where(left > 0, mass / torch.where(left > 0, left, 1), 0).clamp(max=1)
    rest = probs.scatter(1, torch.where(nodes >= 0, token, token[:, :1]), 0)
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, probs)
    return accept, rest / rest.sum(-1, keepdim=True, dtype=torch.float64).to(rest.dtype)


def _seen(token: Int[Tensor, "slots width"]) -> Tensor:
    """Whether a token stands further left in its line."""
    same = token[:, :, None] == token[:, None, :]
    return same.tril(-1).any(-1)


def walk(draft: Draft, target: Law, noise: Noise, judge: Judge) -> Verdict:
    """From each row's end, one draw per slot says which of its candidates is accepted, or none; until a row is at a
    slot with no candidates, or has rejected them all. Rows advance side by side, a level at a time."""
    tree, at = draft.tree, list(range(draft.tree.rows))
    tokens, numbers = draft.token.tolist(), tree.node.tolist()
    paths: list[list[int]] = [[] for _ in at]
    rejected: list[tuple[int, Tensor]] = []  # row, and the law of its token
    live = [r for r in at if tree.children[r]]
    while live:
        lines = [tree.children[at[r]] for r in live]
        accept, rest = judge(target.select(_ints([at[r] for r in live], draft)).dense(), draft, _table(lines, draft))
        first = _ints([numbers[line[0]] for line in lines], draft)
        site = Site(_ints(live, draft), first, torch.full_like(first, len(paths[live[0]])))
        choice = noise.draw(Dense(outcomes(accept)), site, Purpose.ACCEPT).tolist()
        going = []
        for i, (r, line) in enumerate(zip(live, lines, strict=True)):
            if not choice[i]:
                rejected.append((r, rest[i]))
                continue
            word = tokens[line[choice[i] - 1]]
            paths[r].append(next(node for node in line if tokens[node] == word))  # a token drawn twice grows once
            at[r] = tree.rows + paths[r][-1]
            going += [r] if tree.children[at[r]] else []
        live = going
    return _settle(draft, target, noise, paths, rejected)


def outcomes(accept: Float[Tensor, "slots width"]) -> Float[Tensor, "slots outcomes"]:
    """The law of which candidate is accepted, each given that those before it are not. Outcome 0 is none of them, so
    that an outcome has one number however wide the others of a batch are."""
    rejected = (1 - accept).cumprod(1)
    before = torch.cat([torch.ones_like(accept[:, :1]), rejected[:, :-1]], 1)
    return torch.cat([rejected[:, -1:], accept * before], 1)


def _settle(
    draft: Draft, target: Law, noise: Noise, paths: list[list[int]], rejected: list[tuple[int, Tensor]]
) -> Verdict:
    """The token after each path: from the target's law, or from what rejected candidates have left of it."""
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
