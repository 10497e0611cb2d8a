"""The loop of speculative sampling: draft, score, verify, commit, until every row is done.

`rows` may be one request or a ragged batch. Each row advances by its own accepted tokens. Plain decoding is the same
loop with depth 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache

from slipstream.core.interfaces import Drafter, Model, Policy, Verifier, sibling_mode
from slipstream.core.law import Law
from slipstream.core.noise import ArgmaxNoise, CounterNoise, Noise
from slipstream.core.shaping import law_at, places
from slipstream.core.tree import Siblings
from slipstream.core.types import Budget, Draft, Origin, Row, RowOutcome, Scores, Step, Verdict

NoiseFactory = Callable[[Sequence[Row], Sequence[bool]], Noise]
SlotLaw = Callable[[Sequence[Row], Draft, Scores], Law]
"""Computes the law of the token after every slot."""


def decode(
    rows: Sequence[Row],
    model: Model,
    drafter: Drafter,
    verifier: Verifier,
    policy: Policy,
    make_noise: NoiseFactory = CounterNoise,
) -> Generator[list[Step]]:
    """Yield the emitted tokens of each cycle, one step per unfinished row."""
    for row in rows:
        check_fits(row, model.vocab, model.context)
        model.check(row)
    all_rows = rows
    model.open(all_rows)
    drafter.open(all_rows)
    policy.open(all_rows, model, drafter, verifier)
    try:
        while rows := [row for row in rows if row.finish_reason is None]:
            siblings = sibling_mode(verifier, drafter)
            budget = within_limits(policy.budget(rows), rows, model.context, siblings, verifier)
            noise = rule_noise(verifier, make_noise(rows, [verifier.shared] * len(rows)))
            draft, verdict = cycle(rows, model, drafter, verifier, budget, noise)
            policy.observe(rows, draft, verdict)
            yield advance(rows, draft, verdict, model.context)
    finally:
        policy.close(all_rows)
        drafter.close(all_rows)
        model.close(all_rows)


def cycle(
    rows: Sequence[Row],
    model: Model,
    drafter: Drafter,
    verifier: Verifier,
    budget: Sequence[Budget],
    noise: Noise,
    slot_law: SlotLaw | None = None,
) -> tuple[Draft, Verdict]:
    """Draft, score, verify, and commit to the caches. The rows do not grow yet. `slot_law`: default `target_law`."""
    draft = drafter.propose(rows, budget, noise)
    scores = model.score(rows, draft)
    draft = draft.to(scores.logits.device)
    verdict = verifier.verify(draft, (slot_law or target_law)(rows, draft, scores), noise)
    model.commit(rows, verdict)
    drafter.observe(rows, verdict, scores)
    return draft, verdict


def check_fits(row: Row, vocab: int, context: int) -> None:
    """Refuse a prompt the model cannot read. A row with no room for output is marked as finished."""
    if row.length > context:
        raise ValueError(f"the prompt has {row.length} tokens; the model's context holds {context}")
    if max(row.tokens) >= vocab or min(row.tokens) < 0:
        raise ValueError(f"the prompt holds a token id outside 0 to {vocab - 1}")
    if row.room(context) == 0:
        row.finish_reason = "length"


def rule_noise(verifier: Verifier, noise: Noise) -> Noise:
    """The draws of a cycle: those of the noise, or the largest probabilities where the rule says so."""
    return ArgmaxNoise() if verifier.argmax else noise


def within_limits(
    budgets: Sequence[Budget],
    rows: Sequence[Row],
    context: int,
    siblings: Siblings | None = None,
    verifier: Verifier | None = None,
) -> list[Budget]:
    """Budgets whose depth leaves room for the token that verification adds. `siblings`: the sibling mode of trees.

    A rule that needs a draft in every cycle adds no token, so it may fill all of the room."""
    needs_draft = verifier is not None and verifier.needs_draft
    stop_below = 0.0 if verifier is None else verifier.stop_below
    least, spare = (1, 0) if needs_draft else (0, 1)
    depths = [
        min(max(least, budget.depth), row.room(context) - spare) for budget, row in zip(budgets, rows, strict=True)
    ]
    return [
        _limited(budget, depth, siblings, stop_below, needs_draft)
        for budget, depth in zip(budgets, depths, strict=True)
    ]


@lru_cache  # most rows have equal budgets
def _limited(budget: Budget, depth: int, siblings: Siblings | None, stop_below: float, needs_draft: bool) -> Budget:
    least = 0.0 if needs_draft else budget.least_chance
    return Budget(depth, max(budget.stop_below, stop_below), budget.shape, siblings, least)


def target_law(rows: Sequence[Row], draft: Draft, scores: Scores) -> Law:
    """The law of the token after every slot, with the sampling parameters of its row and the tokens before the slot."""
    return law_at(scores.logits, places(rows, draft.tree, draft.token.tolist()))


def advance(rows: Sequence[Row], draft: Draft, verdict: Verdict, context: int) -> list[Step]:
    """Commit the emitted tokens to their rows."""
    steps = []
    for row, outcome in zip(rows, read(draft, verdict), strict=True):
        kept = row.extend(outcome.tokens, outcome.origins, context)
        accepted = min(kept, len(outcome.path))
        steps.append(Step(row, outcome.tokens[:kept], outcome.origins[:kept], outcome.drafted, accepted))
    return steps


def read(draft: Draft, verdict: Verdict) -> list[RowOutcome]:
    """The verdict of each row on the host: the only place that copies a verdict from the device."""
    last = verdict.token.tolist()
    if not len(draft.tree):
        return [RowOutcome([], [token], [Origin.PLAIN], 0) for token in last]
    tokens, paths, bonus = draft.token.tolist(), verdict.path.tolist(), verdict.bonus.tolist()
    drafted = Counter(r for r, _ in draft.tree.lists)
    outcomes = []
    for r, line in enumerate(paths):
        path = [i for i in line if i >= 0]
        final = Origin.PLAIN if not drafted[r] else Origin.BONUS if bonus[r] else Origin.RECOVERED
        emitted = [*(tokens[i] for i in path), last[r]]
        outcomes.append(RowOutcome(path, emitted, [Origin.ACCEPTED] * len(path) + [final], drafted[r]))
    return outcomes
