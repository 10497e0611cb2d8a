"""The dflash drafter drafts by the laws its stack gives over whole texts, whatever happened before, and stays exact."""

from __future__ import annotations

import copy
import json
import random
from collections import defaultdict
from dataclasses import replace
from itertools import product

import pytest
import torch

import letters
from automaton import automaton
from blocks import dflash, reference, rounded, stack
from slipstream.audit.real import RealPair, plan_real
from slipstream.audit.tables.enumeration import outcomes
from slipstream.core.loop import decode
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape, Siblings
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.build import build_drafter
from slipstream.drafters.dflash import cache
from slipstream.drafters.dflash.cpu_chain import cpu_chains
from slipstream.drafters.dflash.folder import save_stack
from slipstream.drafters.levels.grow import grow
from slipstream.drafters.none import NoDrafter
from slipstream.kernels.cpu.linear import has_integers
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.target import Target
from slipstream.models.weights.linears import pack_linears
from slipstream.plan.policy.policies import Fixed
from tiny import VOCAB, build

SOME = sorted(random.Random(1).sample(range(VOCAB), 40))
BLOCK = 4
SMALL = {"vocab_size": 3, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


class Turns(Fixed):
    """Another budget in every cycle and for every row."""

    def __init__(self, *budgets):
        super().__init__(0)
        self.budgets, self.turn = budgets, 0

    def budget(self, rows):
        self.turn += 1
        return [self.budgets[(self.turn + r) % len(self.budgets)] for r in range(len(rows))]


class CheckedDrafter:
    """A tiny target beside an untouched copy, and a dflash drafter every law of which is compared as it drafts."""

    def __init__(self, dtype=torch.float64, markov=0, **options):
        self.plain = build("llama").to(dtype)
        self.close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-4}
        self.target = TorchModel(copy.deepcopy(self.plain), **options)
        self.drafter = dflash(self.target, SOME, block=BLOCK, markov=markov)
        self.rng, self.compared = random.Random(0), 0
        self._propose, self.drafter.propose = self.drafter.propose, self.propose

    def propose(self, rows, budget, noise):
        draft = self._propose(rows, budget, noise)
        taken, laws, depth = defaultdict(list), draft.law.dense().double(), draft.tree.depth.tolist()
        tokens = draft.token.tolist()
        for i, ((r, parent), token) in enumerate(zip(draft.tree.lists, tokens, strict=True)):
            before = rows[r].tokens[-1] if parent < 0 else tokens[parent]
            expected = self.law(
                rows[r], depth[i], before, taken[r, parent] if draft.siblings is Siblings.DISTINCT else []
            )
            taken[r, parent].append(token)
            if draft.siblings is Siblings.CHOSEN:
                assert token in expected.topk(len(taken[r, parent])).indices
            else:
                torch.testing.assert_close(laws[i], expected, **self.close)
            self.compared += 1
        self.drafter.slots.check_integrity()
        return draft

    def law(self, row, depth, before, taken):
        logits = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
        logits[self.drafter.vocabulary.ids] = reference(self.plain, self.drafter, row, before)[depth].double()
        logits[taken] = -torch.inf
        return (logits / row.request.sampling.temperature).softmax(-1)

    def text(self, length):
        return [self.rng.randrange(VOCAB) for _ in range(length)]

    def rows(self, *lengths, max_tokens=10):
        return [Row(Request(self.text(n), Sampling(1.5, seed=n), max_tokens)) for n in lengths]

    def decode(self, rows, rule="token", policy=None):
        for _ in decode(rows, self.target, self.drafter, rules.get(rule)(), policy or Fixed(3)):
            self.target.check_integrity()


@pytest.mark.parametrize("markov", [0, 16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_law_is_the_stacks_over_the_whole_text_in_ragged_batches_after_rejections_and_plain_steps(dtype, markov):
    checked = CheckedDrafter(dtype, markov)
    checked.decode(checked.rows(2, 9, 1, 5), policy=Turns(*map(Budget, (3, 1, 0, 0, 4))))
    assert checked.compared > 30


@pytest.mark.parametrize("markov", [0, 16])
@pytest.mark.parametrize(
    "rule", ["replace", *(pytest.param(r, marks=pytest.mark.slow) for r in ("no_replace", "chosen"))]
)
def test_the_law_of_a_trees_node_depends_on_its_depth_and_with_a_markov_head_on_its_parent(rule, markov):
    """Trees, chains and plain steps side by side."""
    checked = CheckedDrafter(markov=markov)
    tree, chain = Budget(3, shape=Shape(nodes=8, width=3)), Budget(2)
    checked.decode(checked.rows(4, 7, 3, max_tokens=8), rule, Turns(tree, tree, chain, Budget(0)))
    assert checked.compared > 30


def test_prefixes_that_are_reused_and_long_backlogs_are_read_in_pieces(monkeypatch):
    monkeypatch.setattr(cache, "CHUNK", 4)
    checked = CheckedDrafter(prefill_chunk=7)
    first = checked.rows(40, max_tokens=4)
    checked.decode(first)
    again = [Row(Request(first[0].tokens[:n] + checked.text(2), Sampling(1.5, seed=n), 5)) for n in (36, 41)]
    checked.decode(again, policy=Turns(*map(Budget, (2, 0, 0))))
    assert checked.target.prefixes.counts.prefix_tokens_reused > 60
    assert checked.compared > 6


def test_nothing_is_drafted_before_the_target_has_read_the_prompt_and_a_repeated_draft_is_the_same():
    checked = CheckedDrafter(prefill_chunk=4)
    rows = checked.rows(9, 1)
    checked.target.open(rows), checked.drafter.open(rows)
    noise = CounterNoise(rows, [False] * 2)
    for read in (0, 4):
        checked.target.prefill(rows[:1], read)
        assert len(checked.drafter.propose(rows, [Budget(3)] * 2, noise).token) == 0
    checked.target.prefill(rows[:1], 4)  # all but the last token
    one, two = (checked.drafter.propose(rows, [Budget(3)] * 2, noise).token.tolist() for _ in range(2))
    assert one == two
    assert len(one) == 3


def test_a_depth_beyond_the_block_is_cut_to_the_block():
    checked = CheckedDrafter()
    rows = checked.rows(5, 6)
    checked.target.open(rows), checked.drafter.open(rows)
    checked.target.prefill(rows, 9)
    draft = checked.drafter.propose(rows, [Budget(2), Budget(9)], CounterNoise(rows, [False] * 2))
    assert draft.tree.row.tolist() == [0, 0] + [1] * BLOCK


def test_one_kernel_call_reads_all_contexts_and_one_runs_all_blocks(monkeypatch):
    checked = CheckedDrafter(torch.float32)
    kernel = checked.drafter.slots._kernel
    if kernel is None:
        pytest.skip("no kernel here")
    rows = checked.rows(5, 9, 3)
    checked.target.open(rows), checked.drafter.open(rows)
    checked.target.prefill(rows, 9)
    calls, run = [], kernel._kernel.run
    monkeypatch.setattr(
        kernel._kernel, "run", lambda net, pointers, args: calls.append(args) or run(net, pointers, args)
    )
    noise = CounterNoise(rows, [False] * 3)
    for _ in range(2):
        assert len(checked.drafter.propose(rows, [Budget(4)] * 3, noise).token) == 12
    assert [args.keys_only for args in calls] == [True, False, False]  # the context is read once


CHAINS = [Budget(1), Budget(4), Budget(4, 0.05), Budget(3), Budget(3, 0.06), Budget(2)]


KINDS = [
    (0.0, None, False),
    (0.0, Siblings.CHOSEN, False),
    (0.7, Siblings.CHOSEN, False),
    (0.7, None, False),
    (1.5, Siblings.IID, False),
    (1.0, Siblings.DISTINCT, True),
]  # temperature, siblings, shared noise


def compare_with_grow(drafter, target, sampling, siblings, shared, tolerance, propose=None):
    """Compare drafts with those of `grow`, and return the sizes of their trees. Rows of different lengths, budgets and
    end tokens side by side, one of which drafts nothing; several cycles."""
    ends = [frozenset(), frozenset(SOME[::3]), frozenset(), frozenset(SOME[1::4])]
    prompts = [range(1, 9), range(5, 8), range(2, 22), range(30, 41)]
    rows = [Row(Request(list(p), sampling, 60, e)) for p, e in zip(prompts, ends, strict=True)]
    sizes = set()
    target.open(rows), drafter.open(rows)
    for turn in range(6):
        target.prefill(rows, 40)
        budget = [replace(CHAINS[(turn + r) % len(CHAINS)], siblings=siblings) for r in range(len(rows))]
        budget[turn % len(rows)] = replace(budget[0], depth=0)
        alone = (turn + 1) % len(rows)
        for some in (slice(None), slice(alone, alone + 1)):
            noise = CounterNoise(rows[some], [shared] * len(rows[some]))
            drafting = [row for row, spend in zip(rows[some], budget[some], strict=True) if spend.depth]
            outputs = drafter.slots.outputs(drafting, max(spend.depth for spend in budget[some]))
            draft = (propose or drafter.propose)(rows[some], budget[some], noise, *([outputs] if propose else []))
            with torch.inference_mode():
                grown = grow(rows[some], budget[some], noise, drafter.laws(rows[some], drafting, outputs), VOCAB)
            assert draft.token.tolist() == grown.token.tolist()
            assert draft.tree.lists == grown.tree.lists
            assert draft.siblings is grown.siblings
            torch.testing.assert_close(draft.law.dense(), grown.law.dense(), rtol=tolerance, atol=1e-30)
            torch.testing.assert_close(draft.chance, grown.chance, rtol=tolerance, atol=0)
            sizes.add(len(draft.tree))
        for row in rows:
            row.tokens += [SOME[turn], 3, 17 + turn][: 1 + turn % 3]
    return sizes


@pytest.mark.parametrize(("temperature", "siblings", "shared"), KINDS)
def test_chains_of_one_draw_are_those_that_grow_level_by_level(temperature, siblings, shared):
    target = TorchModel(build("llama"))
    sampling = Sampling(temperature, top_k=0 if shared else 17, seed=3)
    sizes = compare_with_grow(dflash(target, SOME, block=BLOCK), target, sampling, siblings, shared, 1e-5)
    assert len(sizes) > 2


@pytest.mark.parametrize(("width", "integers"), [(16, False), (32, True)])
@pytest.mark.parametrize(("temperature", "siblings", "shared"), KINDS)
def test_chains_of_a_markov_head_in_one_call_are_those_that_grow(temperature, siblings, shared, width, integers):
    """With float weights, and with integer weights, whose activations the kernel and torch may round differently."""
    target = TorchModel(build("llama"))
    drafter = dflash(target, SOME, block=BLOCK, markov=width)
    pack_linears(drafter.markov, integers=integers, rounded=integers)
    drafter.cpu_chains = cpu_chains(drafter.markov, drafter.vocabulary)
    if drafter.cpu_chains is None:
        pytest.skip("no kernel here")
    assert drafter.cpu_chains._tables.columns.is_integer == (integers and has_integers())
    torch.testing.assert_close(drafter.markov.previous, drafter.slots.net.markov.previous.weight.detach())
    sampling, tolerance = Sampling(temperature, seed=3), 2e-3 if integers else 1e-4  # of probabilities of e^-35, too
    sizes = compare_with_grow(drafter, target, sampling, siblings, shared, tolerance, drafter.cpu_chains.draft)
    assert len(sizes) > 2


@pytest.mark.parametrize("sampling", [Sampling(0.8, top_k=5), Sampling(0.8, top_p=0.5), Sampling(0.8, min_p=0.3)])
def test_truncated_chains_of_a_markov_head_in_one_call_are_those_that_grow(sampling):
    target = TorchModel(build("llama"))
    drafter = dflash(target, SOME, block=BLOCK, markov=16)
    pack_linears(drafter.markov)
    drafter.cpu_chains = cpu_chains(drafter.markov, drafter.vocabulary)
    if drafter.cpu_chains is None:
        pytest.skip("no kernel here")
    assert len(compare_with_grow(drafter, target, sampling, None, False, 1e-4, drafter.cpu_chains.draft)) > 2


def test_a_grammar_that_leaves_the_draft_vocabulary_ends_the_draft_and_not_the_row():
    target = TorchModel(build("llama"))
    inside, outside = SOME[3], next(token for token in range(VOCAB) if token not in SOME)
    grammar = automaton(({inside: 1, outside: 0}, {outside: 2}, {inside: 0, outside: 0}), VOCAB)
    texts = []
    for drafter in (dflash(target, SOME), NoDrafter(VOCAB)):
        rows = [Row(Request([4, 5], Sampling(1.0, seed=i), 12, grammar=grammar)) for i in range(2)]
        list(decode(rows, target, drafter, rules.get("coupled")(), Fixed(4)))
        texts.append([row.output for row in rows])
    assert texts[0] == texts[1]


def test_rows_come_and_go_and_leave_nothing_behind():
    checked = CheckedDrafter()
    one, two, three = checked.rows(3, 6, 4)
    loop = decode([one, two], checked.target, checked.drafter, rules.get("token")(), Fixed(2))
    next(loop), next(loop)
    loop.close()  # cancelled
    checked.decode([three])
    assert not checked.drafter.slots._rows


class Rounded(TorchModel):
    def score(self, rows, draft):
        scores = super().score(rows, draft)
        return replace(scores, logits=scores.logits.round(decimals=6))


@pytest.mark.parametrize("markov", [0, 16])
@pytest.mark.parametrize(
    ("rule", "shape"), [("token", None), ("block", None), ("replace", Shape.levels([2])), ("chosen", Shape.levels([2]))]
)
def test_several_cycles_with_real_networks_have_the_targets_joint_law(rule, shape, markov):
    """Every outcome of every draw through real caches, against the target's own forward pass. The drafter knows two of
    three tokens; in the first cycle it drafts nothing."""
    cycles, depth = 2, 1 if shape else 2
    plain = build("llama", **SMALL).double()
    target = Rounded(copy.deepcopy(plain))
    drafter, policy = rounded(dflash(target, (0, 2), markov=markov)), Turns(Budget(depth, shape=shape))

    def run(rows, noise):
        loop = decode(rows, target, drafter, rules.get(rule)(), policy, noise)
        for _ in range(cycles):
            next(loop)
        loop.close()

    found, longest = defaultdict(float), 0
    for outcome in outcomes(lambda: Row(Request([0, 1], Sampling(0.8), 1000)), run):
        assert not outcome.faults
        longest = max(longest, len(outcome.row.output))
        found[tuple(outcome.row.output[:cycles])] += outcome.prob
    assert longest == 2 + depth
    for text in product(range(3), repeat=cycles):
        with torch.inference_mode():
            logits = plain(torch.tensor([[0, 1, *text]]), use_cache=False).logits[0, 1:-1]
        expected = (logits / 0.8).softmax(-1).gather(1, torch.tensor(text)[:, None]).prod()
        assert found[text] == pytest.approx(float(expected), abs=1e-5)


def test_the_audit_of_a_real_pair_passes():
    target = TorchModel(build("qwen2").double())
    pair = RealPair(target, dflash(target, SOME), [[5, 6, 7, 8]], [5, 6, 7])
    for check in (item.run() for item in plan_real(pair, ["block"], 64, 0.8)):
        assert check.passed, f"{check.name}: {check.detail}"
        assert "nothing" not in check.detail


@pytest.mark.parametrize(
    ("rule", "temperature", "shape"),
    [
        ("greedy", 0.0, None),
        ("coupled", 0.8, Shape(nodes=6, width=3)),
        pytest.param("greedy", 0.0, Shape(nodes=6, width=3), marks=pytest.mark.slow),
        pytest.param("coupled", 0.8, None, marks=pytest.mark.slow),
    ],
)
def test_one_seed_gives_the_tokens_of_plain_decoding(rule, temperature, shape):
    target = TorchModel(build("qwen2").double())
    drafter, texts = dflash(target, SOME), []
    for policy in (Turns(Budget(3, shape=shape)), Fixed(0)):
        rows = [Row(Request([7, 8, i], Sampling(temperature, seed=i), 14)) for i in range(3)]
        steps = [s for c in decode(rows, target, drafter, rules.get(rule)(), policy) for s in c]
        texts.append(([row.output for row in rows], sum(step.drafted for step in steps)))
    assert texts[0][0] == texts[1][0]
    assert texts[0][1] > 40


def letters_stack(folder, markov=0, **about):
    net = stack(letters.plain(), range(3, 19), features=(0, 1), markov=markov)
    save_stack(folder, net, torch.arange(3, 19), "bf16", about)


def test_a_markov_head_is_stored_with_its_stack_and_its_width_is_checked(tmp_path):
    letters_stack(tmp_path / "stack", markov=16, target="letters")
    drafter = build_drafter(str(tmp_path / "stack"), letters.target())
    assert drafter.markov is not None
    config = tmp_path / "stack" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"markov": 7}))
    with pytest.raises(ValueError, match="markov is 7; it must be 0 or, in the layout joined, one of 16, 32"):
        build_drafter(str(tmp_path / "stack"), letters.target())


def test_it_is_built_from_its_folder(tmp_path):
    letters_stack(tmp_path / "stack", target="letters")
    target = letters.target()
    assert build_drafter(str(tmp_path / "stack"), target).needs.features == (0, 1)
    assert build_drafter("dflash", target, {"model": str(tmp_path / "stack")}).block == 4
    with pytest.raises(ValueError, match="no dflash head is shipped for letters; `slipstream train dflash` makes one"):
        build_drafter("dflash", target)


def test_a_folder_for_another_target_is_refused(tmp_path):
    letters_stack(tmp_path / "stack", target="digits", target_sha256="a" * 64)
    target = letters.target()
    assert build_drafter(str(tmp_path / "stack"), target).block == 4  # the hash of this target is not known
    files = replace(target.files, sha256="b" * 64)
    with pytest.raises(
        ValueError, match=r"was trained for digits \(sha256 aaaaaaaaaaaa\), and letters is another target"
    ):
        build_drafter(str(tmp_path / "stack"), Target(files, target.model, target.text))
    config = tmp_path / "stack" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden": 16}))
    with pytest.raises(ValueError, match="is for a target 16 wide, and this one is 32"):
        build_drafter(str(tmp_path / "stack"), target)
    config.write_text(json.dumps({k: v for k, v in json.loads(config.read_text()).items() if k != "block"}))
    with pytest.raises(ValueError, match="config lacks block"):
        build_drafter(str(tmp_path / "stack"), target)
