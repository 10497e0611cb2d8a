"""Plans the audits on tables: of the rules, and of the audit itself by planted bugs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from slipstream.audit.check import Check, Planned, planned
from slipstream.audit.planted.chain import PLANTED
from slipstream.audit.rational.chain import CYCLES, check_block_accepts_more, check_coupled, check_joint
from slipstream.audit.rational.tree import JUDGES
from slipstream.audit.statistical import check_random_rows, check_sampled
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.costs import Costs
from slipstream.audit.tables.exact import HistoryPolicy, check_cycles, check_endings
from slipstream.audit.tables.lossy import plan_lossy_rule
from slipstream.audit.tables.replay import check_replay
from slipstream.audit.tables.stages import two_stages
from slipstream.audit.tables.trees import plan_tree_rule
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.plan.policy.policies import Fixed


def spare(pair: Pair) -> int | None:
    """A token that can be banned: no row of either table gives it all of the probability."""
    laws = torch.cat([pair.target.probs, pair.draft.probs])
    return next((token for token in reversed(range(pair.target.vocab)) if bool((laws[:, token] < 1).all())), None)


def everything(banned: int | None) -> Sampling:
    """All sampling parameters at once."""
    return Sampling(
        temperature=0.8,
        top_p=0.95,
        min_p=0.02,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.2,
        logit_bias={0: 0.5, 1: -0.3},
        suppress_tokens=frozenset() if banned is None else frozenset({banned}),
    )


def plan_rule(rule: str, pair: Pair, depth: int, samples: int) -> Iterator[Planned[Check]]:
    """Plan every check that applies to the rule."""
    if not rules.get(rule).lossless:
        yield from plan_lossy_rule(rule, pair, depth, samples)
        return
    costs = Costs.of(pair, depth)
    subject = Subject(rules.get(rule), lambda: Fixed(depth))
    if rules.get(rule).siblings:
        yield from plan_tree_rule(rule, pair, samples, everything(spare(pair)), Costs.of(pair, 2))
    if rule == "greedy":
        greedy = replace(subject, sampling=Sampling(temperature=0))
        yield planned("greedy: two cycles", check_cycles, greedy, pair, depth, cost=0.1)
        name = "greedy: same tokens as plain decoding"
        yield planned(name, check_replay, greedy, pair, [1, depth, 2 * depth], cost=costs.replay)
        return
    if rule in CYCLES:
        yield from _plan_chain_law(rule, subject, pair, depth, costs)
    if rule == "block":
        name = "block: accepts at least as much as token"
        yield planned(name, check_block_accepts_more, pair, cost=costs.exact / 4)
    if rule == "coupled":
        yield planned("coupled: closed form of the shared race", check_coupled, pair, cost=costs.exact / 4)
        name = "coupled: one seed, same tokens at every depth"
        yield planned(name, check_replay, subject, pair, [1, depth, 2 * depth], cost=costs.replay)
    if rule not in JUDGES:
        cost = costs.sampled(samples)
        yield planned(f"{rule}: sampled continuations", check_sampled, subject, pair, samples, cost=cost)


def _plan_chain_law(rule: str, subject: Subject, pair: Pair, depth: int, costs: Costs) -> Iterator[Planned[Check]]:
    """Enumerations of a rule on chains."""
    cost, token = costs.exact, spare(pair)
    settings = {
        "two cycles, fixed depth": subject,
        "two cycles, adaptive depth": replace(subject, policy=lambda: HistoryPolicy(depth)),
        "two cycles, early stopping": replace(subject, policy=lambda: Fixed(depth, stop_below=0.6)),
        "two cycles of two stages": replace(subject, drafter=two_stages),
        "temperature, top-k, top-p, min-p": replace(
            subject, sampling=Sampling(temperature=0.7, top_k=2, top_p=0.9, min_p=0.05)
        ),
        "penalties, bias, banned tokens": replace(subject, sampling=everything(token)),
    }
    yield planned(f"{rule}: joint law of two cycles", check_joint, rule, pair, cost=Costs.of(pair, 2).exact)
    for name, changed in settings.items():
        yield planned(f"{rule}: {name}", check_cycles, changed, pair, depth, cost=cost / 2)
    yield planned(f"{rule}: end token and limit", check_endings, subject, pair, cost=cost)
    if token is not None:
        name = f"{rule}: minimum length"
        yield planned(name, check_endings, subject, pair, end=token, min_tokens=2, cost=cost)
    yield planned(f"{rule}: accepted + residual = p", check_random_rows, cost=0.1)


def plan_rules(names: Sequence[str], pair: Pair, depth: int, samples: int) -> list[Planned[Check]]:
    return [check for name in names for check in plan_rule(name, pair, depth, samples)]


@dataclass(frozen=True)
class Caught:
    """A planted bug and the layers that caught it."""

    bug: str
    layers: list[str]


def plan_self_test(pair: Pair, samples: int) -> list[Planned[Caught]]:
    """Plan to check every planted bug by enumeration and by sampling."""
    costs = Costs.of(pair, 2)
    cost = costs.exact + 0.6 * costs.sampled(samples)  # about half of the bugs are caught by the first samples
    return [Planned(bug, partial(_catch, bug, pair, samples), cost) for bug in PLANTED]


def _catch(bug: str, pair: Pair, samples: int) -> Caught:
    """Which layers see a bug. A fifth of the samples is tried first, because many bugs show there already."""
    subject = PLANTED[bug]
    layers = ["exact"] if not check_cycles(bug, subject, pair).passed else []
    if any(not check_sampled(bug, subject, pair, count).passed for count in (max(1000, samples // 5), samples)):
        layers.append("sampled")
    return Caught(bug, layers)
