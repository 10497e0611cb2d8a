"""The eagle drafter drafts by the law its head gives over whole texts, whatever happened before, and stays exact."""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import replace
from itertools import product

import pytest
import torch

from automaton import automaton
from heads import eagle, layer_output, rounded
from slipstream.audit.real import RealPair, plan_real
from slipstream.audit.tables.enumeration import outcomes
from slipstream.core.loop import decode
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape, Siblings
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.build import build_drafter
from slipstream.drafters.eagle import cache as slots
from slipstream.drafters.eagle.folder import save_head
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.drafters.levels.grow import grow
from slipstream.drafters.levels.one_call import candidate_mode
from slipstream.drafters.none import NoDrafter
from slipstream.kernels.cpu.draft import CandidateMode
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed
from tiny import VOCAB, build
from watched import SOME, Turns, Watched

SMALL = {"vocab_size": 3, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


@pytest.mark.parametrize(
    ("kind", "dtype"), [("llama", torch.float64), ("llama", torch.float32), ("gpt2", torch.float64)]
)
def test_every_law_is_the_heads_over_the_whole_text_in_ragged_batches_after_rejections_and_plain_steps(kind, dtype):
    watched = Watched(kind, dtype)
    watched.decode(watched.rows(2, 9, 1, 5), policy=Turns(*map(Budget, (3, 1, 0, 0, 4))))
    assert watched.compared > 30


@pytest.mark.parametrize(
    ("rule", "shape", "dtype"),
    [
        ("replace", Shape.levels([2, 2, 1]), torch.float32),
        ("replace", Shape(nodes=8, width=3), torch.float64),
        ("no_replace", Shape(nodes=8, width=3), torch.float64),
        ("chosen", Shape(nodes=8, width=3), torch.float64),
    ],
)
def test_every_law_of_a_tree_is_the_heads_along_its_own_path(rule, shape, dtype):
    """Trees, chains and plain steps side by side."""
    watched = Watched(dtype=dtype)
    tree, chain = Budget(3, shape=shape), Budget(2)
    watched.decode(watched.rows(4, 7, 3, max_tokens=7), rule, Turns(tree, tree, chain, Budget(0)))
    assert watched.compared > 30


def test_reused_beginnings_bring_their_states_along():
    watched = Watched()
    first = watched.rows(40, max_tokens=4)
    watched.decode(first)
    again = [Row(Request(first[0].tokens[:n] + watched.text(2), Sampling(1.5, seed=n), 5)) for n in (36, 41)]
    watched.decode(again)
    assert watched.target.prefixes.counts.prefix_tokens_reused > 60


def test_a_long_backlog_is_read_in_pieces(monkeypatch):
    monkeypatch.setattr(slots, "CHUNK", 4)
    watched = Watched(prefill_chunk=7)
    watched.decode(watched.rows(30, 11, max_tokens=14), policy=Turns(*map(Budget, (2, 0, 0, 0, 0, 0, 0, 0, 0))))
    assert watched.compared > 3


def test_asked_twice_it_says_the_same():
    watched = Watched()
    rows = watched.rows(5, 3)
    loop = decode(rows, watched.target, watched.drafter, rules.get("token")(), Fixed(2))
    next(loop), next(loop)
    one, two = (watched.drafter.propose(rows, [Budget(4)] * 2, CounterNoise(rows, [False] * 2)) for _ in range(2))
    assert one.token.tolist() == two.token.tolist()
    assert len(one.token) == 8


def test_nothing_is_drafted_before_the_target_has_read_the_prompt():
    watched = Watched(prefill_chunk=4)
    rows = watched.rows(9, 1)
    watched.target.open(rows), watched.drafter.open(rows)
    noise = CounterNoise(rows, [False] * 2)
    assert len(watched.drafter.propose(rows, [Budget(3)] * 2, noise).token) == 0
    watched.target.prefill(rows[:1], 4)
    assert len(watched.drafter.propose(rows, [Budget(3)] * 2, noise).token) == 0
    watched.target.prefill(rows[:1], 4)  # all but the last token: a whole state for every slot
    assert len(watched.drafter.propose(rows, [Budget(3)] * 2, noise).token) == 3


def test_a_grammar_that_leaves_the_draft_vocabulary_ends_the_draft_and_not_the_row():
    target = TorchModel(build("llama"))
    inside, outside = SOME[3], next(token for token in range(VOCAB) if token not in SOME)
    grammar = automaton(({inside: 1, outside: 0}, {outside: 2}, {inside: 0, outside: 0}), VOCAB)
    for temperature in (0.0, 1.0):
        texts = []
        for drafter in (eagle(target, SOME), NoDrafter(VOCAB)):
            rows = [Row(Request([4, 5], Sampling(temperature, seed=i), 12, grammar=grammar)) for i in range(2)]
            steps = [s for c in decode(rows, target, drafter, rules.get("coupled")(), Fixed(4)) for s in c]
            texts.append([row.output for row in rows])
        assert texts[0] == texts[1]
    assert not sum(step.drafted for step in steps)


def test_an_end_token_ends_the_draft():
    target = TorchModel(build("llama"))
    drafter = eagle(target)
    ends = frozenset(range(VOCAB))
    rows = [Row(Request([4, 5, 6], Sampling(seed=1), 50, ends)), Row(Request([4, 5, 6], Sampling(seed=1), 50))]
    target.open(rows), drafter.open(rows)
    target.prefill(rows, 2)
    draft = drafter.propose(rows, [Budget(4)] * 2, CounterNoise(rows, [False] * 2))
    assert draft.tree.row.tolist() == [0, 1, 1, 1, 1]


def tiny_pair(*requests):
    """A target, a head on it for which there is a kernel, and rows that both hold."""
    target = TorchModel(build("llama"))
    drafter = eagle(target, SOME)
    if not drafter.slots.has_kernel:
        pytest.skip("no kernel here")
    rows = [Row(request) for request in requests]
    target.open(rows)
    drafter.open(rows)
    return target, drafter, rows


def stepwise(drafter, rows, budget, noise):
    """What grows, a step at a time."""
    ranking = any(spend.shape and spend.siblings is Siblings.CHOSEN for spend in budget)
    return grow(rows, budget, noise, drafter.laws(rows, ranking), drafter.vocabulary.size)


def assert_same(one, slow):
    """A call that read a slot at the wrong place, or drew by another number, would go astray at once."""
    assert one.token.tolist() == slow.token.tolist()
    assert one.tree.lists == slow.tree.lists
    assert list(zip(one.tree.row.tolist(), one.tree.parent.tolist(), strict=True)) == slow.tree.lists
    assert one.siblings is slow.siblings
    assert type(one.law) is type(slow.law)
    torch.testing.assert_close(one.law.dense(), slow.law.dense(), rtol=4e-6, atol=1e-30)
    torch.testing.assert_close(one.chance, slow.chance, rtol=4e-6, atol=0)


def tree(depth, nodes, width, floor=0.0):
    return Budget(depth, floor, Shape(nodes=nodes, width=width))


TREES = [tree(5, 12, 4), tree(3, 40, 3), tree(1, 6, 6), tree(7, 24, 6), tree(4, 5, 40), tree(6, 16, 1, 0.05)]
CHAINS = [Budget(1), Budget(5), Budget(7, 0.05), Budget(3), Budget(6, 0.06), Budget(2)]


@pytest.mark.parametrize(
    ("kind", "temperature", "siblings", "shared", "budgets"),
    [
        (CandidateMode.LIKELY, 0.0, Siblings.CHOSEN, False, TREES),
        (CandidateMode.LIKELY, 0.7, Siblings.CHOSEN, False, TREES),
        (CandidateMode.RACED, 1.3, Siblings.DISTINCT, True, TREES),
        (CandidateMode.SURE, 0.0, None, False, CHAINS),
        (CandidateMode.SURE, 0.0, Siblings.CHOSEN, False, CHAINS),
        (CandidateMode.LIKELY, 0.7, Siblings.CHOSEN, False, CHAINS),
        (CandidateMode.DRAWN, 0.7, None, False, CHAINS),
        (CandidateMode.DRAWN, 1.5, Siblings.IID, False, CHAINS),
        (CandidateMode.DRAWN, 1.0, Siblings.DISTINCT, True, CHAINS),
        (CandidateMode.DRAWN, {"top_k": 5}, None, False, CHAINS),
        (CandidateMode.DRAWN, {"top_p": 0.7}, None, False, CHAINS),
        (CandidateMode.DRAWN, {"top_k": 9, "top_p": 0.9, "min_p": 0.1}, Siblings.DISTINCT, True, CHAINS),
    ],
)
def test_drafts_in_one_call_are_what_grows_step_by_step(kind, temperature, siblings, shared, budgets):
    """Rows of different lengths, budgets and end tokens side by side, one of which drafts nothing; several cycles."""
    wish = Sampling(0.9, seed=3, **temperature) if isinstance(temperature, dict) else Sampling(temperature, seed=3)
    ends = [frozenset(), frozenset(SOME[::3]), frozenset(), frozenset(SOME[1::4])]
    prompts = [range(1, 9), range(5, 8), range(2, 22), range(30, 41)]
    target, drafter, rows = tiny_pair(*(Request(list(p), wish, 60, e) for p, e in zip(prompts, ends, strict=True)))
    sizes = set()
    for turn in range(6):
        target.prefill(rows, 40)
        budget = [replace(budgets[(turn + r) % len(budgets)], siblings=siblings) for r in range(len(rows))]
        budget[turn % len(rows)] = replace(budget[0], depth=0)
        alone = (turn + 1) % len(rows)
        for some in (slice(None), slice(alone, alone + 1)):
            noise = CounterNoise(rows[some], [shared] * len(rows[some]))
            assert candidate_mode(rows[some], budget[some], noise.has_fields, VOCAB) is kind
            one = drafter.propose(rows[some], budget[some], noise)
            assert_same(one, stepwise(drafter, rows[some], budget[some], noise))
            sizes.add(len(one.tree))
        for row in rows:
            row.tokens += [SOME[turn], 3, 17 + turn][: 1 + turn % 3]
    assert len(sizes) > 3
    drafter.slots.check_integrity()


def test_what_someone_else_has_a_say_in_grows_step_by_step():
    best = Budget(4, shape=Shape(nodes=8, width=3), siblings=Siblings.CHOSEN)
    asked = [
        (Request([1, 2, 3], Sampling(0.8, top_p=0.5)), best),
        (Request([1, 2, 3], Sampling(0.8, top_k=5)), Budget(3, siblings=Siblings.CHOSEN)),
        (Request([1, 2, 3], Sampling(0, logit_bias={SOME[0]: 4.0})), best),
        (Request([1, 2, 3], Sampling(0.8)), replace(best, siblings=Siblings.DISTINCT)),
        (Request([1, 2, 3], Sampling(0)), replace(best, shape=Shape((-1, -1, 0)))),
    ]
    for request, spend in asked:
        target, drafter, rows = tiny_pair(request, Request([4, 5], Sampling(0)))
        target.prefill(rows, 3)
        assert candidate_mode(rows, [spend, best], False, VOCAB) is None
        assert candidate_mode(rows, [replace(spend, depth=0), best], False, VOCAB) is CandidateMode.LIKELY
        assert len(drafter.propose(rows[:1], [spend], CounterNoise(rows[:1], [False])).tree) > 0
    assert candidate_mode(rows, [replace(best, shape=None), best], False, VOCAB) is None  # a chain beside a tree
    assert candidate_mode(rows, [best, best], False, 2) is None


def test_rows_come_and_go_and_leave_nothing_behind():
    watched = Watched()
    one, two, three = watched.rows(3, 6, 4)
    loop = decode([one, two], watched.target, watched.drafter, rules.get("token")(), Fixed(2))
    next(loop), next(loop)
    loop.close()  # cancelled
    watched.decode([three])
    assert not watched.drafter.slots._head_rows
    assert not watched.target.rows


def test_a_head_that_comes_while_rows_are_under_way_works_for_rows_that_open_later():
    watched = Watched()
    target = TorchModel(copy.deepcopy(watched.plain))
    prompt = watched.text(40)
    early, under_way, later = (Row(Request(prompt, Sampling(1.5, seed=n), 6)) for n in range(3))
    nobody, rule = NoDrafter(VOCAB), rules.get("token")()
    list(decode([early], target, nobody, rule, Fixed(0)))
    loop = decode([under_way], target, nobody, rule, Fixed(0))
    next(loop), next(loop)
    watched.target, watched.drafter.slots.target = target, target
    target.declare(watched.drafter.needs.features)
    watched.decode([later])
    list(loop)
    assert watched.compared > 3
    with pytest.raises(ValueError, match="layers 0 to 2"):
        target.declare([3])


@pytest.mark.parametrize("closes", [False, True])
def test_what_was_read_without_a_layer_is_not_handed_on_to_rows_that_need_it(closes):
    watched = Watched()
    target = TorchModel(copy.deepcopy(watched.plain))
    prompt = watched.text(41)
    early, other, later = (Row(Request(text)) for text in (prompt, watched.text(3), prompt))
    target.open([early])
    target.prefill([early], 40 if closes else 20)
    target.declare([1])
    target.open([other])
    if closes:
        target.close([early])
    else:
        target.prefill([early], 20)
    target.open([later])
    while target.cached(later) < 40:
        target.prefill([later], 40)
    expected = layer_output(watched.plain, prompt, 1)[:40]
    torch.testing.assert_close(target.states(later)[1], expected, rtol=1e-4, atol=2e-4)  # norms are in float32


WIDE = Shape.levels([2])


class Rounded(TorchModel):
    def score(self, rows, draft):
        scores = super().score(rows, draft)
        return replace(scores, logits=scores.logits.round(decimals=6))


@pytest.mark.parametrize(
    ("rule", "shape", "temperature"),
    [
        ("token", None, 0.8),
        ("block", None, 1.0),
        ("replace", WIDE, 1.0),
        ("no_replace", WIDE, 0.8),
        ("spectr", WIDE, 1.0),
        ("chosen", WIDE, 0.8),
    ],
)
def test_several_cycles_with_real_networks_have_the_targets_joint_law(rule, shape, temperature):
    """Every outcome of every draw through real caches, against the target's own forward: the whole path, exactly. The
    head knows two of three tokens; in the first cycle it drafts nothing."""
    cycles = 2 if shape else 3
    plain = build("llama", **SMALL).double()
    target = Rounded(copy.deepcopy(plain))
    drafter = rounded(eagle(target, (0, 2)))
    policy = Turns(Budget(1, shape=shape))

    def run(rows, noise):
        loop = decode(rows, target, drafter, rules.get(rule)(), policy, noise)
        for _ in range(cycles):
            next(loop)
        loop.close()

    found, longest = defaultdict(float), 0
    for outcome in outcomes(lambda: Row(Request([0, 1], Sampling(temperature), 1000)), run):
        assert not outcome.faults
        longest = max(longest, len(outcome.row.output))
        found[tuple(outcome.row.output[:cycles])] += outcome.prob
    assert longest == 2 * cycles - 1
    for text in product(range(3), repeat=cycles):
        with torch.inference_mode():
            logits = plain(torch.tensor([[0, 1, *text]]), use_cache=False).logits[0, 1:-1]
        expected = (logits / temperature).softmax(-1).gather(1, torch.tensor(text)[:, None]).prod()
        assert found[text] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(("rule", "temperature"), [("token", 1.0), ("block", 0.8)])
def test_the_audit_of_a_real_pair_passes(rule, temperature):
    target = TorchModel(build("qwen2").double())
    pair = RealPair(target, eagle(target, SOME), [[5, 6, 7, 8]], [5, 6, 7])
    for check in (item.run() for item in plan_real(pair, [rule], 64, temperature)):
        assert check.passed, f"{check.name}: {check.detail}"
        assert "nothing" not in check.detail


@pytest.mark.parametrize(("rule", "temperature"), [("greedy", 0.0), ("coupled", 0.8)])
@pytest.mark.parametrize("shape", [None, Shape(nodes=6, width=3)], ids=["chain", "tree"])
def test_one_seed_gives_the_tokens_of_plain_decoding(rule, temperature, shape):
    target = TorchModel(build("qwen2").double())
    drafter, texts = eagle(target, SOME), []
    for policy in (Turns(Budget(3, shape=shape)), Fixed(0)):
        rows = [Row(Request([7, 8, i], Sampling(temperature, seed=i), 14)) for i in range(3)]
        steps = [s for c in decode(rows, target, drafter, rules.get(rule)(), policy) for s in c]
        texts.append(([row.output for row in rows], sum(step.drafted for step in steps)))
    assert texts[0][0] == texts[1][0]
    assert texts[0][1] > 40


@pytest.mark.model
def test_a_head_that_knows_nothing_changes_no_token_of_the_default_model(tmp_path):
    """Random weights: hardly a token is accepted, and greedy text is that of plain decoding."""
    from default import target

    torch.manual_seed(0)
    found = target()
    net = EagleNet(EagleConfig(576, 9, 3, 64, 256, (3, 16, 29), 1000))
    save_head(tmp_path / "head", net, torch.arange(20, 1020))
    drafter = build_drafter(str(tmp_path / "head"), found)
    texts = []
    for some in (drafter, NoDrafter(found.model.vocab)):
        rows = [Row(Request(found.text.encode(words, raw=True), Sampling(0), 12)) for words in ("Once upon", "A")]
        steps = [s for c in decode(rows, found.model, some, rules.get("greedy")(), Fixed(3)) for s in c]
        texts.append([row.output for row in rows])
        if some is drafter:
            assert sum(step.drafted for step in steps) > 20
    assert texts[0] == texts[1]


@pytest.mark.model
@pytest.mark.parametrize(("temperature", "siblings"), [(0.0, Siblings.CHOSEN), (0.8, Siblings.DISTINCT)])
def test_the_shipped_heads_trees_in_one_call_are_what_grows_level_by_level(temperature, siblings):
    """Of eleven trees of 24 nodes at most one differs: two paths may be as likely to the last bit."""
    from default import target

    found = target()
    drafter = build_drafter("eagle", found)
    if not drafter.slots.has_kernel:
        pytest.skip("no kernel here")
    text = found.text.encode("def merge(left, right):\n    # two sorted lists as one\n    result = []\n", raw=True)
    row = Row(Request(text[:6], Sampling(temperature, seed=5), 100))
    found.model.open([row]), drafter.open([row])
    spend, same = Budget(10, shape=Shape(nodes=24, width=6), siblings=siblings), []
    for token in text[6:17]:
        row.tokens.append(token)
        found.model.prefill([row], 40)
        noise = CounterNoise([row], [siblings is Siblings.DISTINCT])
        mode = candidate_mode([row], [spend], noise.has_fields, found.model.vocab)
        assert mode in (CandidateMode.LIKELY, CandidateMode.RACED)
        one, slow = drafter.propose([row], [spend], noise), stepwise(drafter, [row], [spend], noise)
        same.append(one.token.tolist() == slow.token.tolist() and one.tree.lists == slow.tree.lists)
        assert len(one.tree) == 24
    assert sum(same) >= len(same) - 1
    drafter.close([row]), found.model.close([row])
