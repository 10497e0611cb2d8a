"""The suffix automaton counts substrings, the history is bounded and separate by tenant, and drafts follow counts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.audit.planted.memory import HONEST_MEMORY, HONEST_POLICY, PLANTED_MEMORIES
from slipstream.audit.statistical import check_sampled
from slipstream.audit.subject import Pair
from slipstream.core.types import Request, Row
from slipstream.drafters.suffix.automaton import SuffixAutomaton
from slipstream.drafters.suffix.drafter import Suffix, SuffixOptions, SuffixRow
from slipstream.drafters.suffix.history import SEGMENTS, History, Match

TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=3)


def automaton(*texts: list[int]) -> SuffixAutomaton:
    built = SuffixAutomaton()
    for text in texts:
        built.begin()
        built.extend(text)
    return built


@given(TEXTS)
def test_every_substring_is_counted_and_nothing_else_is_there(texts):
    built, counts = automaton(*texts), Counter[tuple[int, ...]]()
    for text in texts:
        counts.update(tuple(text[i:j]) for i in range(len(text)) for j in range(i + 1, len(text) + 1))
    paths, found = {(): 0}, Counter[tuple[int, ...]]()
    while paths:
        path, state = paths.popitem()
        for token, other in built.next[state].items():
            paths[*path, token] = other
            found[*path, token] = built._count[other]
    assert found == counts
    assert len(built.next) <= 2 * built.size + 1


@given(TEXTS, st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_the_longest_suffix_is_followed(texts, read):
    built, state, matched = automaton(*texts), 0, 0
    for end, token in enumerate(read, 1):
        state, matched = built.follow(state, matched, token)
        suffixes = (read[:end][-k:] for k in range(end, 0, -1))
        assert matched == next((len(s) for s in suffixes if any(_within(s, text) for text in texts)), 0)


def _within(part: list[int], text: list[int]) -> bool:
    return any(text[i : i + len(part)] == part for i in range(len(text)))


def test_the_most_frequent_continuation_is_drafted_and_the_latest_of_equal_ones():
    row = SuffixRow(4.0, None)
    assert row.guess([1, 2, 7, 1, 2, 8, 1, 2, 7, 9, 1, 2], 2) == [7, 9]
    assert SuffixRow(4.0, None).guess([1, 5, 1, 6, 1], 1) == [6]
    assert SuffixRow(4.0, None).guess([1, 2, 3], 4) == []


def test_a_longer_match_is_followed_further():
    text = [*range(20), 30, 9]
    assert SuffixRow(2.0, None).guess(text, 10) == [10, 11]
    assert SuffixRow(2.0, None).guess([*text[:-1], 7, 8, 9], 10) == [10, 11, 12, 13, 14, 15]


def test_a_repetition_goes_round():
    assert SuffixRow(4.0, None).guess([7, 8, 7, 8], 6) == [7, 8, 7, 8, 7, 8]


def test_a_tree_holds_the_frequent_continuations():
    paths = SuffixRow(4.0, None).guesses([1, 2, 7, 1, 2, 8, 1, 2, 7, 9, 1, 2], 2, 6)
    assert paths[0][:1] == [7]
    assert {path[0] for path in paths} == {7, 8}


def test_outputs_of_one_tenant_are_no_others_business():
    history = History(1000)
    history.add("a", [1, 2, 3, 4])
    own, other = Match(history, "a"), Match(history, "b")
    assert own.longest([9, 1, 2])[2] == 2
    assert other.longest([9, 1, 2]) is None


def test_the_least_recently_used_outputs_are_dropped():
    history = History(SEGMENTS * 4)
    for tenant in ("a", "b", "c", "d"):
        history.add(tenant, [1, 2, 3, 4])
    Match(history, "a").longest([1, 2])  # b is now the one that was used least recently
    history.add("e", [5, 6, 7, 8])
    assert [bool(history.of(tenant)) for tenant in "abcde"] == [True, False, True, True, True]
    assert history.size <= history.capacity


def test_many_tenants_share_the_memory():
    """20,000 outputs into a history for 10,000. It took minutes when a drop looked at all tenants."""
    history = History(40_000)
    for tenant in range(20_000):
        history.add(str(tenant), [1, 2, 3, 4])
    assert history.size == 40_000
    assert len(history._segments) == len(history._tenants) == 10_000
    assert not history.of("9999")
    assert history.of("10000")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 9), max_size=20)), max_size=20))
def test_the_history_never_grows_beyond_its_capacity(outputs):
    history = History(24)
    for tenant, output in outputs:
        history.add(tenant, output)
        assert history.size == sum(segment.size for name in "ab" for segment in history.of(name)) <= 24


def test_a_finished_row_is_remembered_where_it_may_be():
    drafter = Suffix(50)
    for history in (None, "a"):
        row = Row(Request([1, 2], history=history))
        drafter.open([row])
        row.tokens += [5, 6, 7, 8]
        drafter.close([row])
        assert drafter.history.size == (4 if history else 0)
    follower, stranger = (Row(Request([9, 5, 6], history=tenant)) for tenant in ("a", None))
    assert drafter.new(follower).guess(follower.tokens, 4) == [7, 8]
    assert drafter.new(stranger).guess(stranger.tokens, 4) == []


def test_a_row_matches_outputs_that_are_added_while_it_decodes():
    drafter = Suffix(50)
    row = Row(Request([1, 2], history="a"))
    drafter.open([row])
    early = drafter._rows[row]
    assert early.guess([1, 2], 3) == []
    drafter.history.add("a", [2, 3, 4, 5])
    assert early.guess([1, 2, 3], 3) == [4, 5]


@pytest.mark.parametrize("bad", [{"history": -1}, {"factor": 0.0}])
def test_illegal_options_are_refused(bad):
    with pytest.raises(ValueError, match="it must be"):
        SuffixOptions(**bad)


@pytest.mark.parametrize("bug", PLANTED_MEMORIES)
def test_what_remembers_an_answer_biases_the_same_coins(bug):
    """By sampling: the second answer itself is wrong, not only the use of a random number for two draws."""
    assert not check_sampled(bug, PLANTED_MEMORIES[bug], Pair.random(2, vocab=3), 1000).passed


@pytest.mark.parametrize("honest", [HONEST_MEMORY, HONEST_POLICY], ids=["drafter", "policy"])
def test_a_repeated_request_without_memory_is_exact(honest):
    check = check_sampled("x", honest, Pair.random(2, vocab=3), 1000)
    assert check.passed, check.detail
