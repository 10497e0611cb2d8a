"""While an engine decodes, garbage collection is rare and turns of threads are short; then both are as before."""

from __future__ import annotations

import gc
import sys

import pytest

import letters
from slipstream.engines.native.engine import NativeEngine
from slipstream.kernels import collector


@pytest.fixture
def usual():
    before = gc.get_threshold()
    gc.set_threshold(500, 7, 5)
    yield (500, 7, 5)
    gc.set_threshold(*before)


def test_thresholds_are_raised_while_an_engine_decodes_and_restored_after_the_last(usual):
    with NativeEngine(letters.target()) as first:
        assert gc.get_threshold() == usual, "nothing is decoded yet"
        first.generate("abc", max_tokens=2)
        assert gc.get_threshold() == (collector.YOUNG, 7, 5)
        with NativeEngine(letters.target()) as second:
            second.generate("abc", max_tokens=2)
            assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == (collector.YOUNG, 7, 5), "the first engine goes on"
    assert gc.get_threshold() == usual


def test_turns_of_threads_are_short_while_an_engine_decodes():
    before = sys.getswitchinterval()
    assert before > 2 * collector.TURN
    with NativeEngine(letters.target()) as engine:
        engine.generate("abc", max_tokens=2)
        assert sys.getswitchinterval() == pytest.approx(collector.TURN)
    assert sys.getswitchinterval() == before


def test_a_collector_that_is_off_stays_off(usual):
    gc.set_threshold(0, 7, 5)
    with NativeEngine(letters.target()) as engine:
        engine.generate("abc", max_tokens=2)
        assert gc.get_threshold()[0] == 0


def test_closing_an_engine_that_never_decoded_changes_nothing(usual):
    NativeEngine(letters.target()).close()
    assert gc.get_threshold() == usual


def test_a_pause_ends_with_its_block_and_leaves_a_collector_off_that_was_off():
    with collector.paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with collector.paused():
        pass
    off = not gc.isenabled()
    gc.enable()
    assert off
