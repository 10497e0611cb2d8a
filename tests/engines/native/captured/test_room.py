"""What caches begin with on a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.engines.native.captured.room import USUAL, first_room


def test_a_cache_begins_with_a_usual_batch_as_far_as_there_is_room():
    assert first_room(1 << 30, 1, 1 << 40) == USUAL
    assert first_room(1 << 30, 1, 1 << 40, 777) == USUAL + 777, "with room for retained rows"
    assert first_room(5000, 1, 1 << 40) == 5000, "no more than the rows may take"
    assert first_room(1 << 30, 1000, 10**6) == 1000, "nor than its share of the memory"
