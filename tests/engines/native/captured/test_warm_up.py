"""Warming up: many rows first, and nothing of it is left in statistics or in what the policy expects."""

from __future__ import annotations

import pytest
import torch

import letters
import whispers
from slipstream.core.sampling import Sampling
from slipstream.engines.native.captured.warm_up import (
    DRAFTING,
    FURTHER,
    LENGTHS,
    LONG,
    LONG_DRAFTING,
    PLAIN,
    PROMPT,
    ROWS,
    SAMPLINGS,
    SPEECH_DRAFTING,
    SPEECH_ROWS,
    prompts,
    recordings,
    rounds,
    speech_rounds,
)
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.engines.options import GenerationOptions


class IdleRunner:
    """A runner of captured cycles that no row suits."""

    expected_rows, prompt_sizes = 1, (8, 24, 1 << 14)

    def suits(self, row, rule):
        return False

    def only_chains(self, drafter, rule):
        return False


def kind(sampling):
    return sampling.temperature, sampling.seed


def test_rounds_begin_with_the_most_rows_and_have_every_depth_and_temperature():
    plan = list(rounds(6, drafts=True, context=1000))
    short = [each for each in plan if each.prompt == PROMPT and not each.text]
    assert [each.rows for each in short] == [4] * 21 + [2] * 18 + [1] * 21
    for rows, depths in ((4, (PLAIN, *DRAFTING, *FURTHER)), (2, (PLAIN, *DRAFTING)), (1, (PLAIN, *DRAFTING, *FURTHER))):
        kinds = {(*kind(each.sampling), each.speculation) for each in short if each.rows == rows}
        assert kinds == {(*kind(sampling), how) for sampling in SAMPLINGS for how in depths}
    drafting = [each for each in plan if each.speculation.depth]
    assert all(each.tokens > 2 * each.speculation.depth for each in drafting), "rows end before they draft so far"
    assert {each.speculation for each in rounds(6, drafts=False, context=1000)} == {PLAIN}
    assert max(each.rows for each in rounds(300, drafts=True, context=1000)) == ROWS
    assert len({tuple(prompt) for prompt in prompts(ROWS, 1 << 12)}) == ROWS


def test_long_texts_have_cycles_of_their_own_where_the_context_has_room():
    plan = [each for each in rounds(16, drafts=True, context=8192) if each.text]
    assert {each.rows for each in plan} == {16, 4, 1}
    assert {each.text for each in plan} == {LONG}
    assert {each.speculation for each in plan} == {PLAIN, *LONG_DRAFTING}
    assert {each.prompt for each in plan} == {PROMPT}
    assert {kind(each.sampling) for each in plan} == set(map(kind, SAMPLINGS))
    assert not [each for each in rounds(16, drafts=True, context=2000) if each.text]
    assert {each.speculation for each in rounds(16, drafts=False, context=8192) if each.text} == {PLAIN}


def test_prompts_of_several_lengths_fit_the_context():
    for context, lengths in ((1000, LENGTHS[:-1]), (4000, LENGTHS), (20, ())):
        plan = rounds(2, drafts=True, context=context)
        assert tuple(dict.fromkeys(each.prompt for each in plan if each.prompt != PROMPT)) == lengths
    assert [len(prompt) for prompt in prompts(2, 7, 100)] == [100, 100]


def test_every_size_of_a_pass_over_prompts_is_met_twice_and_nothing_of_it_is_stored():
    for drafts in (True, False):
        plan = list(rounds(8, drafts, 1000, sizes=(192, 768, 4096)))[-6:]
        assert [(each.rows, each.prompt) for each in plan] == [(1, 191)] * 2 + [(3, 255)] * 2 + [(8, 511)] * 2
        assert {each.speculation.depth for each in plan} == {3 if drafts else None}
    first, second = (prompts(3, 1 << 12, 50, number) for number in (4, 5))
    common = [sum(a == b for a, b in zip(one, other, strict=True)) for one in first for other in second]
    assert max(common) < 3


def test_speech_is_greedy_and_has_timestamps_or_none():
    plan = list(speech_rounds(64, drafts=True))
    assert {each.rows for each in plan} == {1, 2, 4, SPEECH_ROWS}
    assert {(*kind(each.sampling), each.speculation) for each in plan} == {
        (0.0, None, how) for how in (PLAIN, *SPEECH_DRAFTING)
    }
    times, text = recordings(3, {"fr": 7})
    assert [(audio.language, audio.timestamps) for audio in (*times, *text)] == [("fr", True)] * 3 + [("fr", False)] * 3
    assert not times[0].samples().any()
    assert recordings(1, {})[0][0].language is None, "a model of one language has no token for it"


def test_a_warm_engine_has_emitted_nothing_and_expects_nothing():
    with NativeEngine(letters.target(), "ngram", limits=Limits(rows=2)) as engine:
        engine.warm_up()  # nothing is captured on a CPU
        assert engine.stats["row_cycles"] == 0
        first = engine.generate("abcabc", Sampling(0), max_tokens=4)[0].token_ids
        engine._batch.captured.runner = IdleRunner()
        seen = []
        submit = engine.submit_all
        engine.submit_all = lambda ids, *rest: seen.append(len(ids)) or submit(ids, *rest)
        engine.warm_up()
        del engine.submit_all
        plan = list(rounds(2, drafts=True, context=engine.target.model.context, sizes=(8, 24)))
        assert seen == [each.rows for each in plan], "a step does not read so many tokens as the largest size"
        runner = engine._batch.captured.runner
        assert not runner.captures_all
        assert not runner.least_text
        assert (engine.stats["tokens"], engine.stats["drafted"], engine.stats["failures"]) == (0, 0, {})
        assert engine._policy.acceptance.groups() == []
        assert engine.generate("abcabc", Sampling(0), max_tokens=4)[0].token_ids == first
        assert engine.stats["tokens"] == 4


def test_a_speech_engine_warms_up_with_silence(tmp_path):
    with NativeEngine(str(whispers.write(tmp_path)), "ngram", limits=Limits(rows=2)) as engine:
        engine._batch.captured.runner = IdleRunner()
        heard = []
        submit = engine.submit_all
        engine.submit_all = lambda audio, *rest: heard.extend(audio) or submit(audio, *rest)
        engine.warm_up()
        del engine.submit_all
        assert len(heard) == 2 * (2 + 1) * (1 + len(SPEECH_DRAFTING))
        assert {each.timestamps for each in heard} == {True, False}
        assert (engine.stats["tokens"], engine.stats["failures"]) == (0, {})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_requests_of_usual_sizes_capture_nothing_after_it():
    with NativeEngine("smollm2-135m", "eagle", limits=Limits(rows=4), warm_up=True) as engine:
        runner = engine._batch.captured.runner
        assert runner is not None
        before = runner.captures
        assert {cycle.key.rows for cycle in runner.captured} == {1, 2, 4}
        for sampling in SAMPLINGS:
            for rows in (4, 2, 1):
                options = GenerationOptions(32, ignore_eos=True)
                handles = engine.submit_all(["Tell me of the sea."] * rows, [sampling] * rows, options)
                assert [len(handle.result().token_ids) for handle in handles] == [32] * rows
        assert runner.captures == before
