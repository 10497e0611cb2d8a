"""Drafters that look text up know how long their matches are, and leave out what is not worth its cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.exact import check_cycles
from slipstream.core.rules import rules
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.match_record import FIRST_CHANCES, MatchRecord
from slipstream.drafters.ngram import NGram, NGramIndex, NGramOptions
from slipstream.drafters.suffix.drafter import Suffix
from slipstream.plan.policy.policies import Fixed

VOCAB = 100
PHRASE = list(range(10, 30))


def opened(drafter, tokens):
    row = Row(Request(tokens))
    drafter.open([row])
    return row


def drafted(drafter, row, least=0.0, depth=4):
    return drafter.chains([row], [Budget(depth, least_chance=least)])[0]


def test_a_record_learns_what_matches_of_each_length_are_worth():
    record = MatchRecord()
    assert [record.chance(n) for n in (1, 2, 4, 8, 16, 32)] == list(FIRST_CHANCES)
    assert record.chance(3) == record.chance(2)
    assert record.chance(500) == record.chance(32)
    for _ in range(60):
        record.learn(2, True)
        record.learn(9, False)
    assert record.chance(3) > 0.9
    assert record.chance(8) < 0.1
    assert record.chance(1) == FIRST_CHANCES[0]
    for _ in range(200):
        record.learn(2, False)
    assert record.chance(2) < 0.1, "the past counts less and less"


def test_the_length_of_a_match_is_counted_beyond_the_looked_up_suffix():
    index = NGramIndex(NGramOptions(longest=3))
    index.extend([*PHRASE, 1, 2, *PHRASE[:12]])
    start = index.find(PHRASE[9:12])
    assert start == 12
    assert index.matched(start) == 12


@pytest.mark.parametrize("kind", [NGram, Suffix])
def test_only_long_matches_are_drafted_where_a_chance_is_asked_for(kind):
    drafter = kind(VOCAB)
    short, long = opened(drafter, [*PHRASE, 1, 2, PHRASE[3]]), opened(drafter, [*PHRASE, 1, 2, *PHRASE[:16]])
    assert drafted(drafter, short)[:1] == [PHRASE[4]]
    assert drafted(drafter, short, least=0.5) == []
    assert drafted(drafter, long, least=0.5) == PHRASE[16:20]
    assert drafted(drafter, long, least=0.99) == []


@pytest.mark.parametrize("kind", [NGram, Suffix])
def test_guesses_that_are_left_out_are_learnt_from(kind):
    """Every short match comes true, though none is drafted: soon they are."""
    drafter = kind(VOCAB)
    row = opened(drafter, [7, 8, 1])
    found = list[int]()
    for n in range(60):
        row.tokens += [n % 50 + 40, 7]
        found += drafted(drafter, row, least=0.5, depth=1)
        row.tokens.append(8)
    assert found[-1] == 8
    assert len(found) < 60
    chance = drafter.record.chance(1)
    drafter.close([row])
    assert chance > 0.5


def test_without_a_chance_nothing_is_read_from_the_record_or_added_to_it():
    """A request with a fixed depth, as one with a seed has under most rules, depends on no other request."""
    drafter = NGram(VOCAB)
    row = opened(drafter, [7, 8, 1, 7])
    for _ in range(20):
        assert len(drafted(drafter, row, depth=1)) == 1
        row.tokens += [9, 7, 8, 1, 7]
    assert [drafter.record.chance(n) for n in (1, 2, 4)] == list(FIRST_CHANCES[:3])


class Asking(Fixed):
    """Asks for chains of two tokens that are worth drafting."""

    def budget(self, rows):
        return [Budget(2, least_chance=0.3)] * len(rows)


class FixedRecord(MatchRecord):
    """Learns nothing: the outcomes that are enumerated share a drafter, and must not depend on each other."""

    def learn(self, matched, came_true):
        pass


def with_fixed_record(kind, vocab):
    drafter = kind(vocab)
    drafter.record = FixedRecord()
    return drafter


@pytest.mark.parametrize("kind", [NGram, Suffix])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_loop_stays_exact_where_guesses_are_left_out(rule, kind):
    subject = Subject(rules.get(rule), lambda: Asking(2), drafter=lambda table: with_fixed_record(kind, table.vocab))
    pair = replace(Pair.random(1), prompt=(0, 1, 0, 1, 0))  # matches of several lengths
    check = check_cycles("x", subject, pair, depth=2)
    assert check.passed, check.detail
