"""Stop strings are found wherever the text is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.engines.stops import StopStrings

letters = st.text("ab", max_size=12)


@given(st.lists(letters, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_cut_anywhere_it_shows_what_a_single_look_would(pieces, strings):
    """Fed letter by letter as tokens come, the text shown ends before the first stop string to be complete."""
    whole = "".join(pieces)
    ends = [(whole.find(s) + len(s), whole.find(s)) for s in strings if s in whole]
    stops, shown = StopStrings(strings), ""
    for letter in whole:
        shown += stops.feed(letter)
        if stops.hit:
            break
    assert stops.hit == bool(ends)
    if not ends:
        assert shown + stops.flush() == whole
    else:
        first = min(end for end, _ in ends)
        assert shown == whole[: min(start for end, start in ends if end == first)]


@given(st.lists(letters, max_size=6), st.text("ab", min_size=1, max_size=4))
def test_in_pieces_of_any_length_one_string_is_found_at_its_first_place(pieces, string):
    whole, stops, shown = "".join(pieces), StopStrings([string]), ""
    for piece in pieces:
        shown += stops.feed(piece)
        if stops.hit:
            break
    assert (shown if stops.hit else shown + stops.flush()) == whole.split(string)[0]


def test_only_what_may_become_a_stop_is_held_back():
    stops = StopStrings(["stop"])
    assert [stops.feed(piece) for piece in ("go s", "t", "ep", "sto", "p!")] == ["go ", "", "step", "", ""]
    assert stops.hit
