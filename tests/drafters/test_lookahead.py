"""Lookahead decoding: the target's choices after drafted tokens are the next drafts, and the text stays the same."""

from __future__ import annotations

import pytest
import torch

import letters
import slipstream as ss
from slipstream.core.loop import decode
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Request, Row
from slipstream.drafters.lookahead import Lookahead, LookaheadOptions, LookaheadRow
from slipstream.drafters.none import NoDrafter
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.run.table_model import Table, TableModel
from slipstream.plan.policy.policies import Fixed


def test_a_draft_walks_through_the_pool_and_then_through_the_window():
    row = LookaheadRow(100)
    assert row.guess([4, 5, 6], 2) == [5, 6]  # the first guesses: the last tokens of the text
    row.learn((5, 6), 7)
    row.learn((6, 7), 8)
    row.look_ahead([1, 2, 3])
    assert row.guess([4, 5, 6], 4) == [7, 8, 3, 6]  # the pool, the window, and the text where it ends
    row.learn((9, 6), 1)
    assert row.guess([4, 5, 6], 1) == [7]  # two tokens before a position tell more than one
    assert row.guess([4, 4, 6], 1) == [1]


def test_the_oldest_entries_are_dropped():
    row = LookaheadRow(4)
    for token in range(10):
        row.learn((token, token + 1), token)
    assert len(row._pool) == 4
    assert row.guess([9, 10], 1) == [9]
    assert len(LookaheadRow(4).guess([1], 5)) == 5


def test_the_choices_after_rejected_tokens_are_the_next_guesses():
    """A table in which token n is always followed by n + 1: every wrong guess is followed by a better one."""
    vocab = 8
    probs = [[1.0 if after == (last + 1) % vocab else 0.0 for after in range(vocab)] for last in range(vocab)]
    table = Table(torch.tensor(probs, dtype=torch.float64), order=1)
    lengths = {}
    for name, drafter in {"plain": NoDrafter(vocab), "lookahead": Lookahead(vocab)}.items():
        row = Row(Request([0, 1], Sampling(temperature=0), max_tokens=40))
        steps = list(decode([row], TableModel(table), drafter, rules.get("greedy")(), Fixed(4)))
        assert row.output == [n % vocab for n in range(2, 42)]
        lengths[name] = len(steps)
    assert lengths["plain"] == 40
    assert lengths["lookahead"] <= 14


@pytest.mark.parametrize("shape", [None, Shape(nodes=6, width=2)], ids=["chain", "tree"])
@pytest.mark.parametrize("sampling", [ss.Sampling(0), ss.Sampling(0.9, seed=4)], ids=["greedy", "coupled"])
def test_the_text_is_that_of_plain_decoding(sampling, shape):
    with NativeEngine(letters.target(), "lookahead", depth=4) as engine:
        options = {"max_tokens": 24, "ignore_eos": True}
        plain = engine.generate(["abc", "ponm"], sampling, **options, speculation=ss.Speculation(off=True))
        drafted = ss.Speculation(depth=4, verify="coupled", shape=shape)
        done = engine.generate(["abc", "ponm"], sampling, **options, speculation=drafted)
        assert [sample.token_ids for sample in done] == [sample.token_ids for sample in plain]
        assert sum(sum(sample.stats.accepted) for sample in done) > 0
        assert not engine.stats["failures"]


def test_an_illegal_size_is_refused():
    with pytest.raises(ValueError, match="pool is 0; it must be 1 or more entries"):
        LookaheadOptions(pool=0)
