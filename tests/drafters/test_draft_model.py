"""A draft model keeps its own cache in step, tells the law it drew from, and leaves the loop exact."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from slipstream.audit.tables.enumeration import outcomes
from slipstream.core.law import Dense
from slipstream.core.loop import decode
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.draft_model import DraftModel
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed
from tiny import build
from uneven import Uneven

SMALL = {"vocab_size": 3, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def plain(model, ids):
    """The model's own logits after these tokens, its own attention, no cache."""
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            return model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    finally:
        model.set_attn_implementation("slipstream")


def drafter(vocab=97, **more):
    model = build("llama", num_hidden_layers=1, **more)
    return DraftModel(TorchModel(model), vocab)


def propose(draft_model, rows, depth):
    return draft_model.propose(rows, [Budget(depth)] * len(rows), CounterNoise(rows, [False] * len(rows)))


def test_every_law_is_the_draft_models_own_under_the_requests_sampling():
    draft_model = drafter()
    rows = [Row(Request([5, 6, 7, 8, i], Sampling(0.7, top_k=9, seed=i))) for i in range(3)]
    draft_model.open(rows)
    draft = propose(draft_model, rows, 3)
    assert isinstance(draft.law, Dense)
    for r, row in enumerate(rows):
        text = list(row.tokens)
        for node in (draft.tree.row == r).nonzero()[:, 0].tolist():
            logits = plain(draft_model.model.model, text) / 0.7
            kept = logits.masked_fill(logits < logits.topk(9).values[-1], -torch.inf).softmax(-1)
            torch.testing.assert_close(draft.law.dense()[node], kept, atol=1e-4, rtol=1e-3)
            text.append(int(draft.token[node]))


class Forgetful(DraftModel):
    """Begins anew each cycle, so that it has no cache that could be wrong."""

    def propose(self, rows, budget, noise):
        self.close(rows)
        self.open(rows)
        return super().propose(rows, budget, noise)


def outputs(kind, small, rule, policy, rows, tokens):
    """What the loop emits where a draft model of this kind, around this model, drafts for a target."""
    some = [Row(Request([3, 4, 5 + i], Sampling(seed=i), tokens)) for i in range(rows)]
    for _ in decode(some, TorchModel(build("llama")), kind(small, 97), rules.get(rule)(), policy):
        small.check_integrity()
    return [row.output for row in some]


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_the_cache_follows_the_verdicts_and_catches_up_after_plain_steps(rule):
    """Depths that change from cycle to cycle, zero included: the output is that of a drafter made anew each cycle."""

    depths = (3, 0, 0, 1, 2)
    kept, anew = (outputs(kind, drafter().model, rule, Uneven(depths), 3, 25) for kind in (DraftModel, Forgetful))
    assert kept == anew


def test_ids_the_target_does_not_know_are_never_drawn():
    narrow = drafter(vocab=50)
    rows = [Row(Request([1, 2], Sampling(3.0, seed=i))) for i in range(20)]
    narrow.open(rows)
    draft = propose(narrow, rows, 2)
    assert draft.law.vocab == 50
    assert int(draft.token.max()) < 50
    draft.law.check(1e-5)


def test_ids_only_the_target_knows_have_no_probability():
    wide = drafter(vocab=120)
    rows = [Row(Request([1, 2], Sampling(seed=1)))]
    wide.open(rows)
    draft = propose(wide, rows, 2)
    assert draft.law.vocab == 120
    assert float(draft.law.dense()[:, 97:].sum()) == 0


def test_the_drafts_own_context_is_respected():
    short = DraftModel(TorchModel(build("llama", num_hidden_layers=1), context=6), 97)
    row = Row(Request([1, 2, 3, 4], Sampling(seed=1), 20))
    short.open([row])
    assert len(propose(short, [row], 5).token) == 2
    row.tokens += [5, 6, 7]
    assert len(propose(short, [row], 5).token) == 0


def test_an_end_token_ends_the_draft():
    everything = frozenset(range(97))
    rows = [Row(Request([1, 2], Sampling(seed=1), ends=everything))]
    draft_model = drafter()
    draft_model.open(rows)
    assert len(propose(draft_model, rows, 4).token) == 1


def test_the_target_drafting_for_itself_is_accepted_whole():
    model = build("qwen2")
    own = build("qwen2")
    row = Row(Request([1, 2, 3], Sampling(seed=3), 24))
    steps = [
        step
        for cycle in decode([row], TorchModel(model), DraftModel(TorchModel(own), 97), rules.get("token")(), Fixed(3))
        for step in cycle
    ]
    assert sum(step.accepted for step in steps) >= 0.95 * sum(step.drafted for step in steps)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_two_cycles_with_real_networks_have_the_targets_joint_law(rule):
    """Every outcome of every draw through real caches, against the target's own forward: the whole path, exactly."""
    target = TorchModel(build("llama", **SMALL).double())
    small = DraftModel(TorchModel(build("llama", num_hidden_layers=1, **SMALL).double()), 3)

    def run(rows, noise):
        loop = decode(rows, target, small, rules.get(rule)(), Fixed(1), noise)
        for _ in range(2):
            next(loop)
        loop.close()

    found: dict[tuple[int, ...], float] = defaultdict(float)
    for outcome in outcomes(lambda: Row(Request([0, 1], Sampling(1.5), 1000)), run):
        assert not outcome.faults
        text = tuple(outcome.row.output)
        found[text[:2]] += outcome.prob
    for first in range(3):
        after_first = plain(target.model, [0, 1]).double() / 1.5
        for second in range(3):
            after_both = plain(target.model, [0, 1, first]).double() / 1.5
            expected = after_first.softmax(-1)[first] * after_both.softmax(-1)[second]
            # the norms of the network itself work in float32
            assert found[first, second] == pytest.approx(float(expected), abs=1e-7)


def test_nothing_is_left_behind():
    draft_model = drafter()
    rows = [Row(Request([1, 2, 3], Sampling(seed=1), 5))]
    target = TorchModel(build("llama"))
    for _ in decode(rows, target, draft_model, rules.get("token")(), Fixed(2)):
        pass
    assert not draft_model.model.rows
    assert not target.rows


@pytest.mark.parametrize(
    ("rule", "shape"),
    [("no_replace", Shape.levels([2, 2])), ("spectr", Shape.levels([2, 1])), ("chosen", Shape(nodes=7, width=3))],
)
def test_with_trees_the_cache_follows_the_verdicts_too(rule, shape):
    """Against a drafter that is made anew each cycle; what was run and accepted need not be read again. The draft model
    is the target's own twin, so that trees are accepted."""
    policy = Fixed(3, shape=shape)
    kept, anew = (outputs(kind, TorchModel(build("llama")), rule, policy, 2, 9) for kind in (DraftModel, Forgetful))
    assert kept == anew


def test_greedy_trees_of_a_draft_model_leave_the_text_as_it_is():
    target = TorchModel(build("llama"))
    texts = []
    for shape in (None, Shape(nodes=8, width=3)):
        row = Row(Request([3, 4, 5], Sampling(temperature=0), 10))
        for _ in decode([row], target, drafter(), rules.get("greedy")(), Fixed(3 if shape else 0, shape=shape)):
            pass
        texts.append(row.output)
    assert texts[0] == texts[1]


def test_one_cycle_of_a_tree_with_real_networks_has_the_targets_law():
    """Against plain decoding through the same cache: every outcome of every draw of both."""
    target = TorchModel(build("llama", **SMALL).double())
    small = DraftModel(TorchModel(build("llama", num_hidden_layers=1, **SMALL).double()), 3)

    def law(depth):
        def run(rows, noise):
            policy = Fixed(depth, shape=Shape((-1, -1, 1)))
            loop = decode(rows, target, small, rules.get("no_replace")(), policy, noise)
            next(loop)
            loop.close()

        found: dict[int, float] = defaultdict(float)
        for outcome in outcomes(lambda: Row(Request([0, 1], Sampling(1.5), 1000)), run):
            assert not outcome.faults
            found[outcome.row.output[0]] += outcome.prob
        return [found[x] for x in range(3)]

    assert law(2) == pytest.approx(law(0), abs=1e-7)
    assert law(0) == pytest.approx((plain(target.model, [0, 1]).double() / 1.5).softmax(-1).tolist(), abs=1e-6)
