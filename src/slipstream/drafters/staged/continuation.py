"""Verified continuations: tokens that a draft model emits when a cheaper drafter speculates for it.

A continuation is made in inner cycles of the ordinary loop, on rows that are extended hypothetically. Their rules are
lossless, so a token has exactly the draft model's law after the tokens before it. This is the law that is reported.
A continuation ends before a position whose law is too flat (`stop_below`) or allows no token. That is decided by the
law alone and not by the token that was drawn there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from slipstream.core.hypothetical import HypotheticalRow
from slipstream.core.interfaces import Drafter, Model, Verifier, sibling_mode
from slipstream.core.law import Law, OneHot, concat
from slipstream.core.loop import cycle, read
from slipstream.core.noise import InnerCycle, Noise
from slipstream.core.tree import Shape, Siblings
from slipstream.core.types import Budget, Draft, Row, RowOutcome, Scores
from slipstream.core.verify.block import Block
from slipstream.core.verify.match import Coupled
from slipstream.core.verify.tree import NoReplace, Replace


@dataclass(frozen=True)
class Stage:
    """A drafter and the draft model that verifies its tokens."""

    first: Drafter
    middle: Drafter  # its `own_model` verifies
    model: Model  # this model
    depth: int  # tokens that `first` drafts in an inner cycle, at most
    shape: Shape | None = None  # of the trees that `first` drafts; None: chains
    number: int = 1  # stages before the verified one

    def rule(self, noise: Noise) -> Verifier:
        """The rule of inner cycles. All of them are lossless."""
        if noise.has_fields:
            return Coupled()
        tree_rules = (NoReplace(), Replace()) if self.shape else ()
        return next((rule for rule in tree_rules if sibling_mode(rule, self.first) is not None), Block())

    def budgets(self, lines: Collection[Continuation], rule: Verifier) -> list[Budget]:
        """What `first` may draft for each continuation. The token after the accepted ones completes it."""
        greedy = all(line.row.request.sampling.temperature == 0 for line in lines)
        if greedy and Siblings.CHOSEN in self.first.siblings:  # a greedy law has one token, which cannot be ranked
            siblings: Siblings | None = Siblings.CHOSEN
        else:
            siblings = sibling_mode(rule, self.first)
        shape = self.shape if siblings else None
        return [Budget(min(self.depth, line.missing - 1), shape=shape, siblings=siblings) for line in lines]


@dataclass
class Continuation:
    """The continuation of one row: its tokens, and the index of each one's law in `VerifiedContinuations.laws`."""

    row: HypotheticalRow
    wanted: int  # tokens, at most
    stop_below: float
    tokens: list[int] = field(default_factory=list)
    laws: list[int] = field(default_factory=list)

    @property
    def missing(self) -> int:
        return self.wanted - len(self.tokens)


class VerifiedContinuations:
    """The continuations of one draft, and the laws of their tokens."""

    def __init__(self, stage: Stage, noise: Noise) -> None:
        self._stage, self._noise = stage, noise
        self._laws: list[Law] = []
        self._counted = 0  # laws in `_laws`
        self._possible: list[float] = []  # largest probability of each law of the current cycle

    @property
    def laws(self) -> list[Law]:
        """The laws of all cycles; `Continuation.laws` are indices into their concatenation."""
        return self._laws

    def run(self, lines: Mapping[int, Continuation], branch: int = 0) -> None:
        """Complete the continuations of rows, given by their index in the outer cycle. `branch`: their number."""
        while active := {r: line for r, line in lines.items() if line.missing > 0}:
            self._cycle(active, branch)

    def _cycle(self, active: Mapping[int, Continuation], branch: int) -> None:
        stage, rows = self._stage, [line.row for line in active.values()]
        drafted = [len(line.row.drafted) for line in active.values()]
        noise = self._noise.inner(InnerCycle(list(active), drafted, stage.number, branch))
        rule = stage.rule(noise)
        budget = stage.budgets(active.values(), rule)
        draft, verdict = cycle(rows, stage.model, stage.first, rule, budget, noise, self._slot_law)
        for n, (line, outcome) in enumerate(zip(active.values(), read(draft, verdict), strict=True)):
            slots = [n, *(draft.tree.rows + i for i in outcome.path)]
            self._extend(line, outcome, slots)
        self._counted += len(self._possible)

    def _slot_law(self, rows: Sequence[Row], draft: Draft, scores: Scores) -> Law:
        """The draft model's laws, which are kept. A law without possible tokens is replaced by any law that can be
        drawn from: nothing that is drawn there is kept."""
        law = self._stage.middle.own_law(rows, draft, scores)
        self._laws.append(law)
        self._possible = law.support()[1].amax(-1).tolist()
        if min(self._possible) > 0:
            return law
        substitute = OneHot(torch.zeros(1, dtype=torch.long, device=law.device), law.vocab)
        index = [i if best > 0 else len(law) for i, best in enumerate(self._possible)]
        return concat([law, substitute]).select(torch.tensor(index, device=law.device))

    def _extend(self, line: Continuation, outcome: RowOutcome, slots: Sequence[int]) -> None:
        """Append the emitted tokens up to an end token, or to a law that ends the continuation."""
        possible = [self._possible[slot] for slot in slots]
        count = next((n for n, best in enumerate(possible) if not best or best < line.stop_below), len(slots))
        tokens, origins = outcome.tokens[:count], outcome.origins[:count]
        kept = line.row.extend(tokens, origins, self._stage.model.context) if count else 0
        line.tokens += tokens[:kept]
        line.laws += [self._counted + slot for slot in slots[:kept]]
        if kept < len(slots) or line.row.finish_reason is not None:
            line.wanted = len(line.tokens)
