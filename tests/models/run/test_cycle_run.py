"""Several cycles in one call: those of cycles one by one, with the same drafts, caches and features."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heads import head
from slipstream.core.device import Draws
from slipstream.core.loop import advance, cycle, within_limits
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Budget, Origin, Request, Row, Step, Verdict
from slipstream.drafters.eagle.drafter import Eagle
from slipstream.drafters.none import empty_draft
from slipstream.kernels.cpu.decoder import kernel
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.weights.linears import pack_linears
from tiny import CONTEXT, VOCAB, build, build_packed

pytestmark = pytest.mark.skipif(kernel() is None, reason="needs a C++ compiler")
FEATURES = (0, 1)


def opened(model: TorchModel, ends: frozenset[int] = frozenset()) -> Row:
    row = Row(Request([5, 6, 7, 8, 9], max_tokens=100, ends=ends))
    model.declare(FEATURES)
    model.open([row])
    one_by_one(model, row, 1)  # the first pass reads the prompt
    return row


def one_by_one(model: TorchModel, row: Row, count: int) -> list[int]:
    """The same by ordinary passes."""
    tokens: list[int] = []
    for _ in range(count):
        token = model.score([row], empty_draft(1, VOCAB)).logits.argmax(-1)
        none = torch.zeros(1, 0, dtype=torch.long)
        model.commit([row], Verdict(none, token, torch.ones(1, dtype=torch.bool)))
        row.extend(token.tolist(), [Origin.PLAIN], CONTEXT)
        tokens += token.tolist()
    return tokens


def continued(model: TorchModel, row: Row, count: int) -> list[int]:
    """The tokens of up to so many plain cycles in one call."""
    cycles = model.run_cycles(row, count)
    assert all(len(cycle.tokens) == 1 and not cycle.drafted for cycle in cycles)
    return [token for cycle in cycles for token in cycle.tokens]


def extend(row: Row, tokens: list[int]) -> None:
    row.extend(tokens, [Origin.PLAIN] * len(tokens), CONTEXT)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_tokens_cache_and_features_are_those_of_single_passes(kind, integers, threads):
    model, before = TorchModel(build_packed(kind, integers), invariant=True), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        row, other = opened(model), opened(model)
        for count in (7, 2, 300 % 7, 60):  # beyond a row's first places and the first table of angles
            tokens = continued(model, row, count)
            assert tokens == one_by_one(model, other, count)
            extend(row, tokens)
            model.check_integrity()
        for layer in FEATURES:
            assert torch.equal(model.states(row)[layer], model.states(other)[layer][: model.cached(row)])
        assert one_by_one(model, row, 3) == one_by_one(model, other, 3)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_rows_together_have_tokens_caches_and_features_of_single_passes(kind, threads):
    model, before = TorchModel(build_packed(kind, True), invariant=True), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        pairs = [(opened(model), opened(model)) for _ in range(3)]
        for n, (row, other) in enumerate(pairs):  # of different lengths
            extend(row, continued(model, row, 1 + 4 * n))
            one_by_one(model, other, 1 + 4 * n)
        rows = [row for row, _ in pairs]
        for count in (3, 1, 40):
            found = model.run_rows(rows, count, [None] * 3)
            for (row, other), cycles in zip(pairs, found, strict=True):
                tokens = [token for cycle in cycles for token in cycle.tokens]
                assert len(cycles) == count
                assert all(cycle.scoring > 0 == cycle.drafted for cycle in cycles)
                assert tokens == one_by_one(model, other, count)
                extend(row, tokens)
            model.check_integrity()
        for row, other in pairs:
            for layer in FEATURES:
                assert torch.equal(model.states(row)[layer], model.states(other)[layer][: model.cached(row)])
            assert one_by_one(model, row, 3) == one_by_one(model, other, 3)
    finally:
        torch.set_num_threads(before)


def test_rows_together_stop_after_the_end_token_of_any():
    model = TorchModel(build_packed("llama", True), invariant=True)
    tokens = continued(model, opened(model), 20)
    rows = [opened(model), opened(model, frozenset({tokens[6]}))]
    ended = 1 + tokens.index(tokens[6])
    found = model.run_rows(rows, 15, [None] * 2)
    assert [[token for cycle in own for token in cycle.tokens] for own in found] == [tokens[:ended]] * 2


def test_an_end_token_is_the_last_one():
    model = TorchModel(build_packed("llama", True), invariant=True)
    tokens = continued(model, opened(model), 20)
    end = tokens[6]
    stopped = continued(model, opened(model, frozenset({end})), 20)
    assert stopped == tokens[: tokens.index(end) + 1]


def test_nothing_follows_logits_that_are_not_finite():
    model = TorchModel(build_packed("llama", False), invariant=True)
    row = opened(model)
    with torch.no_grad():
        model.model.base_model.norm.weight[3] = float("nan")
    assert continued(model, row, 5) == []
    assert model.score([row], empty_draft(1, VOCAB)).logits.isnan().any()


def test_rows_and_models_that_need_ordinary_passes_have_them():
    model = TorchModel(build_packed("llama", True), invariant=True)
    row = opened(model)
    row.tokens += [4, 4]  # two tokens to read
    assert continued(model, row, 5) == []
    windowed = build("mistral", sliding_window=8)
    pack_linears(windowed)
    for other in (TorchModel(windowed), TorchModel(build("llama"), kernels=False)):
        assert other.run_cycles(opened(other), 5) == []
        assert not other.has_cycle_runs


FEW = {"vocab_size": 5, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}  # so that drafts come true


def pair(
    integers: bool,
    ends: frozenset[int] = frozenset(),
    tokens: int = 400,
    rule: str = "greedy",
    seed: int = 0,
    **limits: Any,
) -> tuple[TorchModel, Eagle, Row, Row]:
    """A target, a head on it that kernels run, and two equal rows that have read their prompt."""
    target = TorchModel(build_packed("llama", integers, **FEW), invariant=True)
    net = head(target.model, range(4), FEATURES)
    pack_linears(net, integers=integers, rounded=integers)
    target.declare(net.config.features)
    embedding = target.model.get_input_embeddings().weight.detach()
    drafter = Eagle(net, torch.arange(4), embedding, target, target.vocab)
    sampling = Sampling(temperature=0.0 if rule == "greedy" else 0.8, seed=seed, **limits)
    rows = [Row(Request([1, 2, 3, 1, 2, 0, 1], sampling, tokens, ends)) for _ in range(2)]
    target.open(rows), drafter.open(rows)
    for row in rows:
        ordinary(target, drafter, row, 2, rule)
    return target, drafter, *rows


def ordinary(target: TorchModel, drafter: Eagle, row: Row, depth: int, rule_name: str = "greedy") -> Step:
    rule = rules.get(rule_name)()
    budget = within_limits([Budget(depth)], [row], target.context, None, rule)
    draft, verdict = cycle([row], target, drafter, rule, budget, CounterNoise([row], [rule.shared]))
    return advance([row], draft, verdict, target.context)[0]


def draws_of(row: Row, rule_name: str) -> Draws:
    rule = rules.get(rule_name)()
    assert rule.device_rule is not None
    stream = CounterNoise([row], [rule.shared]).stream(0)
    return Draws(row.request.sampling, rule.device_rule.verdict, stream)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("integers", [False, True])
def test_cycles_with_chains_are_those_of_single_ones(integers, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        target, drafter, row, other = pair(integers)
        accepted = set()
        for depth, most in ((2, 3), (1, 5), (0, 12), (5, 4), (3, 1), (2, 40)):  # beyond a row's first places
            chains = drafter.chain_head(row, most * (depth + 1)) if depth else None
            done = target.run_cycles(row, most, depth, chains)
            assert len(done) == most
            for found in done:
                step = ordinary(target, drafter, other, depth)
                assert (found.tokens, found.origins) == (step.tokens, step.origins)
                assert (found.drafted, found.accepted) == (step.drafted, step.accepted)
                assert min(found.scoring, found.drafting if depth else 1.0) > 0
                accepted.add(found.accepted)
                row.extend(found.tokens, found.origins, target.context)
            target.check_integrity(), drafter.slots.check_integrity()
        assert {0, 1, 2} <= accepted
        assert ordinary(target, drafter, row, 4).tokens == ordinary(target, drafter, other, 4).tokens
    finally:
        torch.set_num_threads(before)


def compared_runs(rule: str, threads: int, seeds: int, **params: Any) -> set[tuple[int, int]]:
    """Compare runs with single cycles. Returns how many tokens a cycle drafted and accepted, for all cycles."""
    before, counts = torch.get_num_threads(), set[tuple[int, int]]()
    torch.set_num_threads(threads)
    try:
        for seed in range(seeds):
            target, drafter, row, other = pair(True, rule=rule, seed=seed, **params)
            for depth, most in ((2, 6), (0, 5), (4, 12), (1, 12)):
                chains = drafter.chain_head(row, most * (depth + 1)) if depth else None
                draws = None if rule == "greedy" else draws_of(row, rule)
                done = target.run_cycles(row, most, depth, chains, draws)
                assert len(done) == most
                for found in done:
                    step = ordinary(target, drafter, other, depth, rule)
                    assert (found.tokens, found.origins) == (step.tokens, step.origins)
                    assert (found.drafted, found.accepted) == (step.drafted, step.accepted)
                    counts.add((found.drafted, found.accepted))
                    row.extend(found.tokens, found.origins, target.context)
            target.check_integrity(), drafter.slots.check_integrity()
    finally:
        torch.set_num_threads(before)
    return counts


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
@pytest.mark.parametrize("limits", [{}, {"top_k": 4}, {"top_p": 0.95}, {"top_k": 4, "top_p": 0.99, "min_p": 0.02}])
def test_sampled_cycles_with_chains_are_those_of_single_ones(rule, threads, limits):
    counts = compared_runs(rule, threads, 4, **limits)
    assert {(2, 0), (2, 1), (2, 2), (4, 0), (4, 2), (1, 0), (1, 1)} <= counts


CHANGES = {
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.1},
    "bias": {"logit_bias": {0: 0.5, 4: 1.0, 2: -0.3}, "min_p": 0.01},
    "allowed": {"allowed_token_ids": frozenset({0, 2, 3, 4}), "suppress_tokens": frozenset({3})},
    "no draft": {"allowed_token_ids": frozenset({4})},  # which is not in the draft vocabulary
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rule", ["greedy", "token", "block", "coupled"])
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_cycles_with_chains_of_changed_logits_are_those_of_single_ones(rule, threads, changes):
    accepted = {taken for drafted, taken in compared_runs(rule, threads, 3, **changes) if drafted}
    assert not accepted if changes is CHANGES["no draft"] else {0, 1} <= accepted


def test_an_end_token_ends_drafts_and_cycles():
    target, drafter, row, other = pair(True, frozenset({2}))
    cycles = target.run_cycles(row, 50, 3, drafter.chain_head(row, 200))
    steps = [ordinary(target, drafter, other, 3)]
    while other.finish_reason is None:
        steps.append(ordinary(target, drafter, other, 3))
    for cycle_ in cycles:
        row.extend(cycle_.tokens, cycle_.origins, target.context)
    assert [cycle_.drafted for cycle_ in cycles] == [step.drafted for step in steps]
    assert row.output == other.output
    assert row.finish_reason == "stop"


def test_drafts_leave_room_for_the_token_after_them():
    target, drafter, row, other = pair(False, tokens=12)
    cycles = target.run_cycles(row, 50, 3, drafter.chain_head(row, 12))
    drafted = []
    while other.finish_reason is None:
        drafted.append(ordinary(target, drafter, other, 3).drafted)
    assert [found.drafted for found in cycles] == drafted
    assert row.tokens + [token for found in cycles for token in found.tokens] == other.tokens
    assert other.finish_reason == "length"
