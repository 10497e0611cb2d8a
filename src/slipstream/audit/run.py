"""The audits as a user runs them: of the rules on tables, and of the audit itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.audit.check import Check
from slipstream.audit.exact import Nosy, check_cycles, check_endings
from slipstream.audit.planted import PLANTED
from slipstream.audit.rational import CYCLES, check_block_accepts_more, check_coupled, check_joint
from slipstream.audit.rational_tree import JUDGES
from slipstream.audit.replay import check_replay
from slipstream.audit.statistical import check_rows, check_sampled, random_rows
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.trees import audit_tree_rule
from slipstream.core.law import Dense
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.plan.policy import Fixed


def spare(pair: Pair) -> int | None:
    """A token that every law of both tables can do without, so that it may be banned."""
    laws = torch.cat([pair.target.probs, pair.draft.probs])
    return next((token for token in reversed(range(pair.target.vocab)) if bool((laws[:, token] < 1).all())), None)


def everything(banned: int | None) -> Sampling:
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


def audit_rule(rule: str, pair: Pair, depth: int, samples: int) -> Iterator[Check]:
    """Every layer that can say something about the rule."""
    subject = Subject(rules.get(rule), lambda: Fixed(depth))
    if rules.get(rule).siblings:
        yield from audit_tree_rule(rule, pair, samples, everything(spare(pair)))
    if rule == "greedy":
        greedy = replace(subject, sampling=Sampling(temperature=0))
        yield check_cycles("greedy: two cycles", greedy, pair, depth)
        yield check_replay("greedy: same tokens as plain decoding", greedy, pair, [1, depth, 2 * depth])
        return
    if rule in CYCLES:
        yield check_joint(rule, pair)
        yield check_cycles(f"{rule}: two cycles, fixed depth", subject, pair, depth)
        yield check_cycles(
            f"{rule}: two cycles, adaptive depth", replace(subject, policy=lambda: Nosy(depth)), pair, depth
        )
        stopping = replace(subject, policy=lambda: Fixed(depth, stop_below=0.6))
        yield check_cycles(f"{rule}: two cycles, early stopping", stopping, pair, depth)
        warped = replace(subject, sampling=Sampling(temperature=0.7, top_k=2, top_p=0.9, min_p=0.05))
        yield check_cycles(f"{rule}: temperature, top-k, top-p, min-p", warped, pair, depth)
        token = spare(pair)
        shaped = replace(subject, sampling=everything(token))
        yield check_cycles(f"{rule}: penalties, bias, banned tokens", shaped, pair, depth)
        yield check_endings(f"{rule}: end token and limit", subject, pair)
        if token is not None:
            yield check_endings(f"{rule}: minimum length", subject, pair, end=token, min_tokens=2)
        p, q = random_rows(8, 5000, seed=3)
        yield check_rows(f"{rule}: accepted + residual = p", p, Dense(q))
    if rule == "block":
        yield check_block_accepts_more(pair)
    if rule == "coupled":
        yield check_coupled(pair)
        yield check_replay("coupled: one seed, same tokens at every depth", subject, pair, [1, depth, 2 * depth])
    if rule not in JUDGES:
        yield check_sampled(f"{rule}: sampled continuations", subject, pair, samples)


def audit_rules(names: Sequence[str], pair: Pair, depth: int, samples: int) -> Iterator[Check]:
    for name in names:
        yield from audit_rule(name, pair, depth, samples)


@dataclass(frozen=True)
class Caught:
    """A planted bug and the layers that saw it."""

    bug: str
    layers: list[str]


def self_test(pair: Pair, samples: int) -> Iterator[Caught]:
    """Plant each bug and let every layer look at it."""
    for bug, subject in PLANTED.items():
        checks = [check_cycles(bug, subject, pair), check_sampled(bug, subject, pair, samples)]
        yield Caught(bug, [check.layer for check in checks if not check.passed])
