"""Speculative sampling on one screen: draft, score, verify, commit, until every row is done.

`rows` may be one request or a ragged batch; each row advances by what was accepted of its own draft. Depth 0 is plain
decoding through the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from slipstream.core import sampling
from slipstream.core.interfaces import Drafter, Model, Policy, Verifier
from slipstream.core.law import Law
from slipstream.core.noise import CounterNoise, Noise
from slipstream.core.types import Budget, Draft, Origin, Row, Scores, Step, Verdict

NoiseFactory = Callable[[Sequence[Row], Sequence[bool]], Noise]


def decode(
    rows: Sequence[Row],
    model: Model,
    drafter: Drafter,
    verifier: Verifier,
    policy: Policy,
    make_noise: NoiseFactory = CounterNoise,
) -> Generator[list[Step]]:
    """Yield what each cycle emitted, one step per row that took part."""
    for row in rows:
        check_fits(row, model)
    everyone = rows
    model.open(everyone)
    drafter.open(everyone)
    try:
        while rows := [row for row in rows if row.finish is None]:
            budget = within_limits(policy.budget(rows), rows, model.context)
            noise = make_noise(rows, [verifier.shared] * len(rows))
            draft = drafter.propose(rows, budget, noise)
            scores = model.score(rows, draft)
            verdict = verifier.verify(draft, target_law(rows, draft, scores), noise)
            model.commit(rows, verdict)
            drafter.observe(rows, verdict, scores)
            policy.observe(rows, draft, verdict)
            yield advance(rows, draft, verdict, model.context)
    finally:
        drafter.close(everyone)
        model.close(everyone)


def check_fits(row: Row, model: Model) -> None:
    """Refuse a prompt the model cannot take; a row with no room left is finished before it starts."""
    if row.length > model.context:
        raise ValueError(f"the prompt has {row.length} tokens; the model's context holds {model.context}")
    if max(row.tokens) >= model.vocab or min(row.tokens) < 0:
        raise ValueError(f"the prompt holds a token id outside 0 to {model.vocab - 1}")
    if row.room(model.context) == 0:
        row.finish = "length"


def within_limits(budget: Sequence[Budget], rows: Sequence[Row], context: int) -> list[Budget]:
    """No row drafts further than it may emit: one token fewer than its room, for the one that always follows."""
    return [
        replace(spend, depth=min(spend.depth, row.room(context) - 1)) for spend, row in zip(budget, rows, strict=True)
    ]


def target_law(rows: Sequence[Row], draft: Draft, scores: Scores) -> Law:
    """The law of the token after every slot, under its own row's parameters."""
    return sampling.law(scores.logits, [rows[r].request.sampling for r in draft.tree.slot_row.tolist()])


def advance(rows: Sequence[Row], draft: Draft, verdict: Verdict, context: int) -> list[Step]:
    """Commit the emitted tokens to their rows: the one place where the host reads what was decided."""
    tokens, paths = draft.token.tolist(), verdict.path.tolist()
    last, bonus = verdict.token.tolist(), verdict.bonus.tolist()
    drafted = [0] * len(rows)
    for r, _ in draft.tree.lists:
        drafted[r] += 1
    steps = []
    for r, row in enumerate(rows):
        accepted = [tokens[i] for i in paths[r] if i >= 0]
        final = Origin.PLAIN if not drafted[r] else Origin.BONUS if bonus[r] else Origin.RECOVERED
        emitted, origins = [*accepted, last[r]], [Origin.ACCEPTED] * len(accepted) + [final]
        kept = row.extend(emitted, origins, context)
        steps.append(Step(row, emitted[:kept], origins[:kept], drafted[r], min(kept, len(accepted))))
    return steps
