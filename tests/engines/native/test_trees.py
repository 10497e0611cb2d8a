"""Rows that draft trees, chains and nothing share one pass of the batched engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import batches
import letters
from batches import PAIR, VOCAB
from slipstream.core.interfaces import Drafter
from slipstream.core.law import OneHot
from slipstream.core.noise import Noise
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Budget, Draft, Request, Row
from slipstream.drafters.table import TableDrafter
from slipstream.engines.base import GenerationOptions, Speculation, SpeculationStats
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.groups import levels
from slipstream.engines.native.scheduler import Limits
from slipstream.models.run.table_model import TableModel
from slipstream.plan.policy.config import AdaptiveConfig
from slipstream.plan.policy.policies import Adaptive

SHALLOW = AdaptiveConfig(max_depth=4)


class Bush(Drafter):
    """Branches into some tokens at every position: a different few in every row, nodes of all rows interleaved."""

    def __init__(self, vocab: int, width: int) -> None:
        self.vocab, self.width, self.passes = vocab, width, list[list[int]]()

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        owner, parent, token = list[int](), list[int](), list[int]()
        ends = [[-1] for _ in rows]
        for depth in range(max(spend.depth for spend in budget)):
            for r, row in enumerate(rows):
                leaves, ends[r] = ends[r] if depth < budget[r].depth else [], []
                for leaf in leaves:
                    for branch in range(self.width):
                        ends[r].append(len(owner))
                        owner.append(r)
                        parent.append(leaf)
                        token.append((row.length + depth + branch * 2) % self.vocab)
        drafted = torch.tensor(token, dtype=torch.long)
        self.passes.append([owner.count(r) for r in range(len(rows))])
        return Draft(Tree.of(len(rows), owner, parent), drafted, OneHot(drafted, self.vocab))


def sampling(i: int) -> tuple[Sampling, str]:
    hot = Sampling(0.9, seed=i, repetition_penalty=1.0 if i % 3 else 1.3, presence_penalty=0.0 if i % 3 else 0.2)
    return (Sampling(temperature=0), "greedy") if i % 2 else (hot, "coupled")


def test_trees_chains_and_nothing_in_one_pass():
    """Every output is what plain decoding of that row alone gives; trees are accepted along the way."""
    bush = Bush(VOCAB, 3)
    batch = batches.batch(Limits(rows=9), drafters={"bush": bush})
    jobs = []
    for i in range(12):
        how, rule = sampling(i)
        drafter, depth = [("bush", 2), ("table", 3), ("none", 0), ("bush", 1)][i % 4]
        jobs.append(batches.send(batch, Request([i % VOCAB, 1], how, 14 + i), drafter, rule, depth))
    batches.finish(batch)
    assert not batch.failures
    for job in jobs:
        plain = replace(job.plan, drafter="none", depth=0)
        job.plan, plan = plain, job.plan
        assert job.row.output == batches.alone(job).output
        job.plan = plan
    trees = [job.stats for job in jobs if job.plan.drafter == "bush"]
    assert sum(sum(tally.accepted) for tally in trees) > 0
    assert any(count == 12 for counts in bush.passes for count in counts), "three and nine nodes of one row"
    for tally in trees:
        assert all(0 <= share <= 1 for share in tally.acceptance)
        assert tally.wasted == sum(tally.drafted) - sum(tally.accepted)
        assert tally.emitted <= tally.cycles * (1 + len(tally.drafted))


def test_on_a_real_cache_the_accepted_path_is_kept():
    """Branches lie side by side in the cache and are moved when one is kept: a wrong move would show later."""
    bush = Bush(len(letters.TOKENS), 8)
    with NativeEngine(letters.target(), "ngram", "coupled", limits=Limits(rows=6)) as engine:
        engine._drafters["bush"] = bush
        ways = [Speculation(drafter="bush", depth=2), Speculation(drafter="ngram", depth=3), Speculation(off=True)]
        asked = [
            (text, Sampling(0.6, seed=i), GenerationOptions(10 + i, ignore_eos=True, speculation=way))
            for i, way in enumerate(ways * 2)
            for text in ("abcabc", "ponm")
        ]
        together = [ticket.result() for ticket in [engine.submit(*one)[0] for one in asked]]
        for (text, how, options), found in zip(asked, together, strict=True):
            (alone,) = engine.submit(text, how, replace(options, speculation=Speculation(off=True)))
            assert alone.result().token_ids == found.token_ids
        assert engine.stats["failures"] == {}
        engine.target.model.check_integrity()
    accepted = [sum(c.stats.accepted) for c, (_, _, w) in zip(together, asked, strict=True) if w.speculation == ways[0]]
    assert sum(accepted) > 0


def test_levels_count_nodes_by_position():
    tree = Tree.of(3, [0, 2, 0, 0, 2, 0], [-1, -1, 0, -1, 1, 2])
    assert levels(tree) == [[2, 1, 1], [], [1, 1]]
    tally = SpeculationStats()
    tally.book([2, 1, 1], 2, 3)
    tally.book([], 0, 1)
    assert (tally.drafted, tally.accepted, tally.wasted, tally.tau) == ([2, 1, 1], [1, 1], 2, 2.0)


def free_policy() -> Adaptive:
    """Left to itself, and taught that a pass costs the same whatever is in it."""
    policy = Adaptive(SHALLOW)
    for rows in range(1, 7):
        for drafted in (0, 1, 4, 16, 64):
            policy.costs.learn(0.02, rows + drafted, drafted)
    return policy


def test_the_policy_gives_trees_to_rows_whose_rule_takes_them_and_chains_to_the_others():
    """Depths left open, greedy and three sampling rules in one batch: each row is what it would be alone."""
    asked: dict[Row, list[Budget]] = {}

    class Asked(TableDrafter):
        def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
            for row, spend in zip(rows, budget, strict=True):
                asked.setdefault(row, []).append(spend)
            return super().propose(rows, budget, noise)

    batch = batches.batch(Limits(rows=6), free_policy(), drafters={"table": Asked(PAIR.draft)})
    batch.policy.price = lambda *_: None  # type: ignore[method-assign]  # tables cost what they like
    jobs = {}
    for i, rule in enumerate(["greedy", "block", "coupled", "token", "no_replace", "greedy"]):
        how = Sampling(temperature=0) if rule == "greedy" else Sampling(0.9, seed=i)
        jobs[batches.send(batch, Request([i % VOCAB, 1], how, 40), "table", rule, None)] = rule
    batches.finish(batch)
    assert not batch.failures
    for job, rule in jobs.items():
        trees = [spend for spend in asked[job.row] if spend.shape]
        assert bool(trees) == (rule not in ("block", "token")), rule
        assert all(spend.shape.width <= VOCAB for spend in trees)
        assert all(spend.siblings is not None for spend in trees)
        if rule in ("greedy", "coupled"):
            assert job.row.output == batches.alone(job).output, "plain decoding gives the same"
    assert sum(sum(job.stats.accepted) for job in jobs) > 0
    assert not batch.policy.acceptance._opened, "rows that left are forgotten"


@pytest.mark.parametrize("depth", [1, 3])
def test_the_model_of_tables_follows_a_tree(depth):
    """What the tests above stand on: logits of a branch are those of its own path."""
    model, bush = TableModel(PAIR.target), Bush(VOCAB, 2)
    row = Row(Request([1, 2, 3]))
    model.open([row])
    draft = bush.propose([row], [Budget(depth)], None)  # type: ignore[arg-type]
    found = model.score([row], draft).logits
    for path in draft.tree.paths:
        tokens = [*row.tokens, *(int(draft.token[i]) for i in path)]
        torch.testing.assert_close(found[1 + path[-1]].exp(), PAIR.target.law(tokens))
