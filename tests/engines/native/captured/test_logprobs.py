"""Captured cycles record the log-probabilities that the ordinary path reports."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from captured_pair import decoded, use_small_blocks
from slipstream.core.device import DeviceRule, DeviceVerdict, DraftSize, GraphKey
from slipstream.core.sampling import Sampling
from slipstream.engines.job import DecodingPlan

CUT = Sampling(temperature=0.9, top_k=20, top_p=0.8, min_p=0.05)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)


@pytest.mark.parametrize(
    ("drafter", "rule", "depth", "sampling", "logprobs"),
    [("none", "greedy", 0, Sampling(0), (0, 3)), ("draft_model", "block", 2, CUT, (0, None)),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in [
         ("none", "token", 0, CUT, (0, 20)), ("draft_model", "greedy", 3, Sampling(0), (4, 0)),
         ("ngram", "greedy", 2, Sampling(0), (0, 0)), ("draft_model", "coupled", 2, Sampling(0.7), (2, None))])],
)  # fmt: skip
def test_captured_cycles_record_the_log_probabilities_of_the_ordinary_path(drafter, rule, depth, sampling, logprobs):
    plan = DecodingPlan(drafter, rule, depth)
    expected, _ = decoded(False, plan, sampling, (4, 3), logprobs)
    jobs, cycles = decoded(True, plan, sampling, (4, 3), logprobs)
    assert cycles > 1, "the ordinary path ran"
    for job, other, top in zip(jobs, expected, logprobs, strict=True):
        assert job.row.output == other.row.output
        chunks = [each.undecoded() for each in (job, other)]
        drafts = [[item.draft for item in items if item.draft is not None] for items in chunks]
        assert drafts[0] == drafts[1]
        assert bool(drafts[0]) == (bool(depth) and top is not None)
        ours, theirs = ([entry for item in items for entry in item.logprobs] for items in chunks)
        assert [entry.token_id for entry in ours] == ([] if top is None else job.row.output)
        assert [entry.logprob for entry in ours] == pytest.approx([entry.logprob for entry in theirs], abs=1e-4)
        for entry, reference in zip(ours, theirs, strict=True):
            assert len(entry.top_logprobs) == top
            assert [token for token, _ in entry.top_logprobs] == [token for token, _ in reference.top_logprobs]
            wanted = [value for _, value in reference.top_logprobs]
            assert [value for _, value in entry.top_logprobs] == pytest.approx(wanted, abs=1e-4)


def test_more_tokens_than_a_cycle_records_take_the_ordinary_path():
    jobs, cycles = decoded(True, DecodingPlan("none", "greedy", 0), Sampling(0), (2,), (21,))
    assert not cycles
    assert [len(entry.top_logprobs) for item in jobs[0].undecoded() for entry in item.logprobs] == [21, 21]


def test_the_key_of_a_graph_is_saved_with_its_log_probabilities():
    rule = DeviceRule(DeviceVerdict.MATCH, greedy=True)
    for key in (GraphKey(4, DraftSize(3), rule, 1, True, 20), GraphKey(4, DraftSize(3), rule, 1)):
        saved = key.to_json()
        again = GraphKey.from_json(saved)
        assert (again.logprobs, again.cut, again.size) == (key.logprobs, key.cut, key.size)
    assert len(saved) == 5, "as earlier versions saved it"
