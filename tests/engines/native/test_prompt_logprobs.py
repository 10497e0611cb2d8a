"""Log-probabilities of prompt tokens: those of the model run by itself, whatever else the engine does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import letters
from slipstream.core.sampling import Sampling
from slipstream.engines.base import Completion
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.prompts import scorer
from slipstream.engines.native.scheduler import Limits

COLD = Sampling(0)
PROMPT = "abcabcdefabcabcd" * 5


@pytest.fixture
def engine() -> Iterator[NativeEngine]:
    with NativeEngine(letters.target(), "ngram", depth=3) as opened:
        yield opened
    opened.target.model.check_integrity()


def ids(text: str) -> list[int]:
    return letters.tokenizer().encode(text, add_special_tokens=False)


def check(done: Completion, prompt: list[int], top: int) -> None:
    with torch.inference_mode():
        expected = letters.plain()(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert done.prompt_logprobs is not None
    first, *entries = done.prompt_logprobs
    assert first is None
    assert [entry.token_id for entry in entries] == prompt[1:]
    for entry, law in zip(entries, expected, strict=False):
        assert entry.logprob == pytest.approx(float(law[entry.token_id]), abs=1e-4)
        assert [value for _, value in entry.top_logprobs] == pytest.approx(law.topk(top).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("limit", [1, 7, 512])
@pytest.mark.parametrize("max_tokens", [0, 6])
def test_they_are_the_models_own_in_chunks_of_any_size(limit, max_tokens):
    with NativeEngine(letters.target(), "ngram", depth=3, limits=Limits(prefill=limit)) as engine:
        (plain,) = engine.generate(PROMPT, COLD, max_tokens=max_tokens, raw=True)
        for _ in range(2):  # the second time the whole prompt is retained
            (done,) = engine.generate(PROMPT, COLD, max_tokens=max_tokens, raw=True, prompt_logprobs=2)
            check(done, ids(PROMPT), 2)
            assert (done.token_ids, done.finish_reason) == (plain.token_ids, plain.finish_reason)
    engine.target.model.check_integrity()


def test_a_chunk_is_bounded_by_its_logits(monkeypatch):
    monkeypatch.setattr(scorer, "LOGITS", 10 * len(letters.TOKENS))
    with NativeEngine(letters.target(), "none") as engine:
        slots, score = [], engine.target.model.score

        def watched(rows, draft):
            slots.append(draft.tree.rows + len(draft.tree))
            return score(rows, draft)

        monkeypatch.setattr(engine.target.model, "score", watched)
        (done,) = engine.generate(PROMPT, COLD, max_tokens=0, raw=True, prompt_logprobs=1)
        check(done, ids(PROMPT), 1)
        assert max(slots) == 10
        assert sum(slots) == len(ids(PROMPT)) - 1


def test_rows_with_and_without_share_a_batch(engine):
    texts = ["abc", PROMPT, "a", "abcabcabc", PROMPT[:40]]
    bare = engine.generate(texts, COLD, max_tokens=9, raw=True)
    scored = engine.generate(texts, COLD, max_tokens=9, raw=True, prompt_logprobs=3, n=2)
    for text, alone, done, again in zip(texts, bare, scored[::2], scored[1::2], strict=True):
        check(done, ids(text), 3)
        assert done.token_ids == again.token_ids == alone.token_ids
        assert done.prompt_logprobs == again.prompt_logprobs
        assert alone.prompt_logprobs is None


def test_the_first_chunk_of_a_stream_has_them(engine):
    for prompt in (PROMPT, "a"):
        first, *rest = engine.stream(prompt, COLD, max_tokens=8, raw=True, prompt_logprobs=0)
        assert [entry and entry.token_id for entry in first.prompt_logprobs] == [None, *ids(prompt)[1:]]
        assert all(chunk.prompt_logprobs == () for chunk in rest)


def test_a_prompt_that_fills_the_context(engine):
    prompt = (ids(PROMPT) * 2)[: engine.model_info.context_length]
    (done,) = engine.generate([prompt], COLD, max_tokens=0, prompt_logprobs=1)
    check(done, prompt, 1)
    assert (done.token_ids, done.finish_reason) == ([], "length")


def test_a_pass_that_fails_ends_the_request_alone(engine, monkeypatch):
    score, bad = engine.target.model.score, ids("ppppp")

    def fail(rows, draft):
        if any(row.request.prompt == bad for row in rows):
            raise RuntimeError("no such letter")
        return score(rows, draft)

    monkeypatch.setattr(engine.target.model, "score", fail)
    good, broken = engine.generate([ids(PROMPT), bad], COLD, max_tokens=4, prompt_logprobs=0)
    check(good, ids(PROMPT), 0)
    assert (broken.finish_reason, broken.error) == ("error", "the model failed: no such letter")
    assert broken.prompt_logprobs is None


def test_cancelled_while_it_is_scored():
    with NativeEngine(letters.target(), "ngram", limits=Limits(prefill=1)) as engine:
        handles = [*engine.submit(PROMPT, COLD, None)]
        stream = engine.stream(PROMPT, COLD, max_tokens=9, raw=True, prompt_logprobs=0)
        stream.close()
        assert handles[0].result().finish_reason in ("length", "stop")
        (after,) = engine.generate(PROMPT, COLD, max_tokens=0, raw=True, prompt_logprobs=1)
        check(after, ids(PROMPT), 1)
