"""What fails on the device is said once, and requests go on without captured cycles."""

from __future__ import annotations

import pytest

import letters
from slipstream.core.sampling import Sampling
from slipstream.engines.native.engine import NativeEngine


class BrokenRunner:
    expected_rows = 1

    def suits(self, row, rule):
        return True

    def ready(self, row):
        return True

    def drafts(self, drafter):
        return True

    def only_chains(self, drafter, rule):
        return False

    def choose(self, rows, drafter, rule, policy, deferred):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


@pytest.mark.failures
def test_a_capture_that_fails_is_reported_and_the_answer_is_the_same(capsys):
    with NativeEngine(letters.target(), "ngram") as engine:
        expected = engine.generate("abcabc", Sampling(0), max_tokens=6)[0].token_ids
        engine._batch.captured.runner = BrokenRunner()
        done = [engine.generate("abcabc", Sampling(0), max_tokens=6)[0] for _ in range(2)]
        assert [completion.token_ids for completion in done] == [expected] * 2
        assert engine._batch.captured.runner is None
        (failure,) = engine.stats["failures"]
        assert failure.startswith("captured cycles, given up: operation not permitted")
    said = capsys.readouterr().err
    reason = "RuntimeError: operation not permitted when stream is capturing"
    assert said.count(f"cycles are no longer captured ({reason}); decoding on this GPU is several times slower") == 1
    assert "and more" not in said
