"""Drafts that are made while the target scores are those that would have been made afterwards."""

from __future__ import annotations

import threading
from itertools import product

import pytest
import torch

from at_once import AtOnce
from automaton import STATES, automaton
from heads import TableTarget, eagle
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.exact import HistoryPolicy, check_cycles, check_endings
from slipstream.audit.tables.fixed_noise import check_fields
from slipstream.core.interfaces import Drafter
from slipstream.core.loop import decode
from slipstream.core.noise import ArgmaxNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.drafters.build import build_drafter
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.ngram import NGram
from slipstream.drafters.overlapped.drafter import Overlapped
from slipstream.drafters.overlapped.lane import Lane
from slipstream.drafters.overlapped.options import read_overlapped_options
from slipstream.drafters.table import TableDrafter
from slipstream.kernels.machine import limit_threads
from slipstream.models.run.table_model import Table
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed
from tiny import build
from uneven import Uneven

PAIRS = [Pair.random(seed, vocab=2) for seed in range(3)]


def ahead(table: Table) -> Overlapped:
    return Overlapped(TableDrafter(table), table.vocab, executor=AtOnce())


@pytest.mark.parametrize(
    ("pair", "rule", "policy"),
    [
        (PAIRS[0], "token", lambda: Fixed(1)),
        (PAIRS[1], "block", HistoryPolicy),
        (PAIRS[2], "block", lambda: Fixed(1, stop_below=0.5)),
        pytest.param(PAIRS[2], "block", lambda: Fixed(2), marks=pytest.mark.slow),
    ],
    ids=["token", "history", "stop", "deep"],
)
def test_cycles_with_drafts_made_ahead_have_the_targets_law(pair, rule, policy):
    """Every draw is enumerated, those of discarded drafts included."""
    check = check_cycles("x", Subject(rules.get(rule), policy, drafter=ahead), pair)
    assert check.passed, check.detail


def test_end_tokens_limits_and_grammars():
    check = check_endings("x", Subject(rules.get("block"), drafter=ahead), PAIRS[1], max_tokens=3, end=1)
    assert check.passed, check.detail
    full = Pair(*(Table.random(4, 1, seed, zeros=0) for seed in (1, 2)))
    check = check_cycles("x", Subject(rules.get("token"), drafter=ahead, grammar=automaton(STATES)), full, cycles=1)
    assert check.passed, check.detail


def test_under_the_coupled_rule_the_text_is_the_targets_choice():
    check = check_fields("x", Subject(rules.get("coupled"), drafter=ahead), PAIRS[0], {"chains": None})
    assert check.passed, check.detail


def inner(kind: str) -> Drafter:
    if kind == "ngram":
        return NGram(97)
    return DraftModel(TorchModel(build("llama")), 97)  # the target itself, so that much is accepted


def texts(drafter: Drafter, rule: str, policy: Fixed, temperature: float) -> list[list[int]]:
    """A ragged batch of which one row is cancelled early."""
    sampling = [Sampling(temperature, seed=i) for i in range(3)]
    rows = [Row(Request([3, 4, 5, 3, 4, 5 + i][: 4 + i], sampling[i], 24 + i, frozenset({7}))) for i in range(3)]
    for turn, _ in enumerate(decode(rows, TorchModel(build("llama")), drafter, rules.get(rule)(), policy)):
        rows[1].finish_reason = rows[1].finish_reason or ("cancelled" if turn == 2 else None)
    return [row.output for row in rows]


RULES = {"greedy": 0.0, "token": 1.0, "block": 0.7, "coupled": 1.0}  # with a temperature
POLICIES = {"fixed": lambda: Fixed(3), "uneven": lambda: Uneven((3, 3, 3, 0, 2, 2))}
QUICK = {
    ("draft_model", "greedy", "fixed"),
    ("draft_model", "block", "uneven"),
    ("ngram", "coupled", "fixed"),
    ("ngram", "token", "uneven"),
}


@pytest.mark.parametrize(
    ("kind", "rule", "policy"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in product(("draft_model", "ngram"), RULES, POLICIES)
    ],
)
def test_the_tokens_are_those_without_overlap(kind, rule, policy):
    """With real threads: keys of draws depend on the position, not on the time of the draft."""
    plain = texts(inner(kind), rule, POLICIES[policy](), RULES[rule])
    drafter = Overlapped(inner(kind), 97, shared=False)
    assert texts(drafter, rule, POLICIES[policy](), RULES[rule]) == plain
    assert drafter.hits + drafter.misses > 0
    if (kind, rule, policy) == ("draft_model", "greedy", "fixed"):
        assert drafter.hits > drafter.misses
        assert not drafter.inner.model.rows
    assert not drafter._views


def test_a_draft_ahead_runs_while_the_target_scores():
    """The target waits in its pass until the drafter has drafted the next cycle."""
    drafted = threading.Event()

    class Signalling(DraftModel):
        def propose(self, rows, budget, noise):
            draft = super().propose(rows, budget, noise)
            if threading.current_thread() is not main and rows[0].length > 4:
                drafted.set()
            return draft

    class Waiting(TorchModel):
        def score(self, rows, draft):
            assert drafted.wait(20)
            return super().score(rows, draft)

    main = threading.current_thread()
    drafter = Overlapped(Signalling(TorchModel(build("llama")), 97), 97, shared=False)
    row = Row(Request([3, 4, 5], Sampling(0), 12))
    list(decode([row], Waiting(build("llama")), drafter, rules.get("greedy")(), Fixed(3)))
    assert drafter.hits == 2  # 12 tokens in three cycles
    assert drafter.misses == 0


def test_a_failing_draft_ahead_is_discarded():
    class Failing(TableDrafter):
        def propose(self, rows, budget, noise):
            if isinstance(noise, ArgmaxNoise):  # the guess
                raise RuntimeError("broken")
            return super().propose(rows, budget, noise)

    table = PAIRS[0].draft
    drafter = Overlapped(Failing(table), table.vocab, executor=AtOnce())
    subject = Subject(rules.get("greedy"), lambda: Fixed(2), Sampling(0), drafter=lambda _: drafter)
    row, plain = (subject.row(PAIRS[0], 6) for _ in range(2))
    subject.run(PAIRS[0], [row])
    Subject(rules.get("greedy"), lambda: Fixed(2), Sampling(0)).run(PAIRS[0], [plain])
    assert row.output == plain.output
    assert drafter.hits == drafter.misses == 0


def test_what_cannot_overlap_is_refused(monkeypatch):
    options = read_overlapped_options({"drafter": "eagle"}, "overlapped")
    monkeypatch.setattr("slipstream.drafters.build.build_drafter", lambda *_: eagle(TorchModel(build("llama"))))
    with pytest.raises(ValueError, match="eagle drafts from what the target has computed"):
        Overlapped.build(TableTarget(PAIRS[0].draft), options)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    with pytest.raises(ValueError, match="share one device and one thread"):
        Lane(torch.device("cpu"), shared=True)


def test_options_with_the_drafters_name_are_the_drafters():
    options = read_overlapped_options({"drafter": "ngram", "ngram.longest": 4}, "overlapped")
    assert (options.drafter, options.inner) == ("ngram", {"longest": 4})
    with pytest.raises(ValueError, match="overlapped has no option 'longest'"):
        read_overlapped_options({"longest": 4}, "overlapped")
    with pytest.raises(ValueError, match="ngram has no option 'length'"):
        build_drafter("overlapped", TableTarget(PAIRS[0].draft), {"drafter": "ngram", "ngram.length": 4})


def test_threads_are_limited_for_the_calling_thread_alone():
    total, seen = torch.get_num_threads(), {}

    def limited():
        limit_threads(1, total)
        later = threading.Thread(target=lambda: seen.update(later=torch.get_num_threads()))
        later.start()
        later.join()
        seen["own"] = torch.get_num_threads()

    thread = threading.Thread(target=limited)
    thread.start()
    thread.join()
    assert seen == {"own": 1, "later": total}
    assert torch.get_num_threads() == total
