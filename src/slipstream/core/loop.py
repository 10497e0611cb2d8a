"""The loop of speculative sampling: draft, score, verify, commit, until every row is done.

`rows` may be one request or a ragged batch; each row advances by what was accepted of its own draft. Depth 0 is plain
decoding through the same lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache

from slipstream.core.interfaces import Drafter, Model, Policy, Verifier, sibling_mode
from slipstream.core.law import Law
from slipstream.core.noise import CounterNoise, Noise
from slipstream.core.shaping import law_at, places
from slipstream.core.tree import Siblings
from slipstream.core.types import Budget, Draft, Origin, Row, RowOutcome, Scores, Step, Verdict

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
        check_fits(row, model.vocab, model.context)
    everyone = rows
    model.open(everyone)
    drafter.open(everyone)
    policy.open(everyone, model, drafter, verifier)
    try:
        while rows := [row for row in rows if row.finish_reason is None]:
            budget = within_limits(policy.budget(rows), rows, model.context, sibling_mode(verifier, drafter))
            noise = make_noise(rows, [verifier.shared] * len(rows))
            draft = drafter.propose(rows, budget, noise)
            scores = model.score(rows, draft)
            draft = draft.to(scores.logits.device)
            verdict = verifier.verify(draft, target_law(rows, draft, scores), noise)
            model.commit(rows, verdict)
            drafter.observe(rows, verdict, scores)
            policy.observe(rows, draft, verdict)
            yield advance(rows, draft, verdict, model.context)
    finally:
        policy.close(everyone)
        drafter.close(everyone)
        model.close(everyone)


def check_fits(row: Row, vocab: int, context: int) -> None:
    """Refuse a prompt the model cannot take; a row with no room left is finished before it starts."""
    if row.length > context:
        raise ValueError(f"the prompt has {row.length} tokens; the model's context holds {context}")
    if max(row.tokens) >= vocab or min(row.tokens) < 0:
        raise ValueError(f"the prompt holds a token id outside 0 to {vocab - 1}")
    if row.room(context) == 0:
        row.finish_reason = "length"


def within_limits(
    budget: Sequence[Budget], rows: Sequence[Row], context: int, how: Siblings | None = None
) -> list[Budget]:
    """No row drafts further than it may emit: one token fewer than its room, for the one that always follows. `how` is
    what drafter and rule agree on where there are several candidates for a place."""
    return [_cut(spend, min(spend.depth, row.room(context) - 1), how) for spend, row in zip(budget, rows, strict=True)]


@lru_cache  # most rows want the same, most of the time
def _cut(spend: Budget, depth: int, how: Siblings | None) -> Budget:
    return Budget(depth, spend.stop_below, spend.shape, how)


def target_law(rows: Sequence[Row], draft: Draft, scores: Scores) -> Law:
    """The law of the token after every slot, under its own row's parameters and with its own path as history."""
    return law_at(scores.logits, places(rows, draft.tree, draft.token.tolist()))


def advance(rows: Sequence[Row], draft: Draft, verdict: Verdict, context: int) -> list[Step]:
    """Commit the emitted tokens to their rows."""
    steps = []
    for row, news in zip(rows, read(draft, verdict), strict=True):
        kept = row.extend(news.tokens, news.origins, context)
        accepted = min(kept, len(news.path))
        steps.append(Step(row, news.tokens[:kept], news.origins[:kept], news.drafted, accepted))
    return steps


def read(draft: Draft, verdict: Verdict) -> list[RowOutcome]:
    """What was decided, row by row: the one place where the host looks."""
    last = verdict.token.tolist()
    if not len(draft.tree):
        return [RowOutcome([], [token], [Origin.PLAIN], 0) for token in last]
    tokens, paths, bonus = draft.token.tolist(), verdict.path.tolist(), verdict.bonus.tolist()
    drafted = Counter(r for r, _ in draft.tree.lists)
    news = []
    for r, line in enumerate(paths):
        path = [i for i in line if i >= 0]
        final = Origin.PLAIN if not drafted[r] else Origin.BONUS if bonus[r] else Origin.RECOVERED
        emitted = [*(tokens[i] for i in path), last[r]]
        news.append(RowOutcome(path, emitted, [Origin.ACCEPTED] * len(path) + [final], drafted[r]))
    return news
