from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.drafters.ngram import NGramIndex, NGramOptions, PromptLookup, ReferenceLookup


def test_the_longest_match_wins_over_a_later_shorter_one():
    lookup = PromptLookup(NGramOptions(longest=3))
    text = [1, 2, 3, 4, 9, 3, 7, 1, 2, 3]
    assert lookup.guess(text, 2) == [4, 9]


def test_the_latest_of_equal_matches_wins():
    assert PromptLookup(NGramOptions()).guess([1, 5, 2, 1, 6, 2, 1], 1) == [6]


def test_a_copy_that_reaches_the_end_goes_round():
    assert PromptLookup(NGramOptions()).guess([7, 8, 7, 8], 5) == [7, 8, 7, 8, 7]


def test_nothing_known_nothing_drafted():
    assert PromptLookup(NGramOptions()).guess([1, 2, 3], 4) == []


def naive(text, depth, longest=3, shortest=1):
    for size in range(longest, shortest - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                period = len(text) - end
                return [text[end + i % period] for i in range(depth)]
    return []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 6))
def test_the_index_finds_what_a_search_finds(text, depth):
    lookup = PromptLookup(NGramOptions())
    for cut in range(1, len(text)):
        lookup.guess(text[:cut], depth)  # grows step by step, as decoding does
    assert lookup.guess(text, depth) == naive(text, depth)


def test_work_per_token_does_not_grow_with_the_text():
    """Counted, not timed: an index that grew by one token touches as many n-grams as it has sizes."""
    index = NGramIndex(NGramOptions(longest=3))
    index.extend(range(10_000))
    size = len(index.follows)
    index.extend([5])
    assert len(index.follows) - size <= 3
    assert index.find([3, 4, 5]) == 6


def test_a_reference_is_followed_from_its_first_token():
    guided = ReferenceLookup(NGramOptions(), (1, 2, 3, 4, 5), prompt=2)
    assert guided.guess([9, 9], 3) == [1, 2, 3]
    assert guided.guess([9, 9, 1, 2], 3) == [3, 4, 5]


def test_after_a_divergence_the_reference_is_found_again():
    guided = ReferenceLookup(NGramOptions(longest=2, shortest=1), (1, 2, 3, 4, 5, 6), prompt=1)
    assert guided.guess([0, 1], 2) == [2, 3]
    assert guided.guess([0, 1, 8], 2) == []  # 8 was inserted: lost, and nothing of its own to copy
    assert guided.guess([0, 1, 8, 2], 3) == [3, 4, 5]  # back on the reference


def test_a_repeated_phrase_is_found_after_the_old_place_first():
    guided = ReferenceLookup(NGramOptions(longest=1), (1, 7, 2, 1, 7, 3), prompt=0)
    guided.guess([1, 7, 2], 1)
    assert guided.guess([1, 7, 2, 9, 7], 1) == [3]


@pytest.mark.parametrize("bad", [{"longest": 0}, {"shortest": 0}, {"longest": 1, "shortest": 2}])
def test_illegal_sizes_are_refused(bad):
    with pytest.raises(ValueError, match="shortest"):
        NGramOptions(**bad)
