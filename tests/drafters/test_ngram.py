from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.drafters.ngram import NGramIndex, NGramOptions, PromptLookup


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


@pytest.mark.parametrize("bad", [{"longest": 0}, {"shortest": 0}, {"longest": 1, "shortest": 2}])
def test_illegal_sizes_are_refused(bad):
    with pytest.raises(ValueError, match="shortest"):
        NGramOptions(**bad)
