"""What every engine must keep, whoever runs the model. A new engine is tested by naming how to make it here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import letters
from slipstream.core.sampling import Sampling
from slipstream.core.types import Origin
from slipstream.engines import engines
from slipstream.engines.base import Completion, Engine, GenerationOptions, Speculation
from slipstream.engines.native.engine import NativeEngine

MAKE: dict[str, Callable[..., Engine]] = {
    "native": lambda **options: NativeEngine(letters.target(), **{"verify": "coupled", "depth": 4} | options),
}
OFF = Speculation(off=True)
WARM = Sampling(temperature=0.7, top_p=0.95, presence_penalty=0.1, seed=5)
PROMPTS = ["abcabcabc", "ponmponm", "hh", "abcdefghijklmnop"]


def test_every_registered_engine_is_in_a_suite():
    """Peers keep what they say they can, in test_any_engine.py; this suite is for all of it at once."""
    assert set(engines.names()) >= MAKE.keys()


@pytest.fixture(params=sorted(MAKE), scope="module")
def make(request) -> Callable[..., Engine]:
    return MAKE[request.param]


@pytest.fixture(scope="module")
def engine(make) -> Iterator[Engine]:
    with make() as made:
        yield made


def same(a: Completion, b: Completion) -> bool:
    return (a.text, a.token_ids, a.finish_reason) == (b.text, b.token_ids, b.finish_reason)


def ids(text: str) -> list[int]:
    return [letters.TOKENS.index(letter) for letter in text]


def test_one_prompt_and_many(engine):
    (one,) = engine.generate(PROMPTS[0], WARM, max_tokens=12)
    many = engine.generate(PROMPTS, WARM, max_tokens=12)
    assert len(many) == len(PROMPTS)
    assert same(one, many[0])
    assert all(same(*engine.generate(p, WARM, max_tokens=12), m) for p, m in zip(PROMPTS, many, strict=True))
    assert engine.generate([], WARM) == []


def test_text_ids_and_chats(engine):
    chat = [{"role": "user", "content": "abc"}]
    from_text, from_chat = engine.generate("abc", WARM, max_tokens=9) + engine.generate(chat, WARM, max_tokens=9)
    from_ids, raw = engine.generate([1, *ids("abc"), 2], WARM, max_tokens=9) + engine.generate(
        "abc", WARM, max_tokens=9, raw=True
    )
    assert same(from_text, from_chat)
    assert same(from_text, from_ids)
    assert same(raw, *engine.generate(ids("abc"), WARM, max_tokens=9))
    assert from_text.prompt_tokens == 5
    assert raw.prompt_tokens == 3
    both = engine.generate([ids("abc"), ids("hh")], WARM, max_tokens=3)
    assert [c.prompt_tokens for c in both] == [3, 2]


def test_a_sampling_for_each_prompt(engine):
    hows = [replace(WARM, seed=i, temperature=t) for i, t in enumerate((0.0, 0.5, 1.0, 2.0))]
    together = engine.generate(PROMPTS, hows, max_tokens=8)
    assert all(
        same(*engine.generate(p, how, max_tokens=8), c) for p, how, c in zip(PROMPTS, hows, together, strict=True)
    )
    with pytest.raises(ValueError, match="4 prompts and 2 samplings"):
        engine.generate(PROMPTS, hows[:2])


def test_samples_differ_and_can_be_repeated(engine):
    first, again = (engine.generate("abc", WARM, max_tokens=16, n=3) for _ in range(2))
    assert len({c.text for c in first}) == 3
    assert all(map(same, first, again))
    assert same(first[0], *engine.generate("abc", WARM, max_tokens=16))
    fresh = engine.generate("abc", replace(WARM, seed=None), max_tokens=16, n=2)
    assert fresh[0].text != fresh[1].text


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculation_changes_nothing_but_the_origins(engine, temperature):
    how = replace(WARM, temperature=temperature)
    fast, slow = (
        engine.generate(PROMPTS, how, max_tokens=30, ignore_eos=True, speculation=s) for s in (Speculation(), OFF)
    )
    assert all(map(same, fast, slow))
    assert any(Origin.ACCEPTED in c.origins for c in fast)
    assert all(set(c.origins) == {Origin.PLAIN} for c in slow)
    assert all(c.tau == 1 for c in slow)
    assert all(c.tau >= 1 for c in fast)


def test_speculation_by_request(engine):
    asked = [
        Speculation(drafter="none"),
        Speculation(depth=0),
        Speculation(depth=2),
        Speculation(drafter="ngram", depth=7),
        Speculation(verify="coupled"),
    ]
    tickets = [
        engine.submit("abcabc", WARM, GenerationOptions(max_tokens=24, ignore_eos=True, speculation=s))[0]
        for s in asked
    ]
    done = [ticket.result() for ticket in tickets]
    assert all(same(done[0], other) for other in done)
    assert [len(c.stats.drafted) for c in done[:2]] == [0, 0]
    assert len(done[2].stats.drafted) <= 2
    for rule in ("token", "block"):
        (other,) = engine.generate("abc", WARM, max_tokens=9, ignore_eos=True, speculation=Speculation(verify=rule))
        assert len(other.token_ids) == 9


def test_a_stream_is_the_completion_in_pieces(engine):
    chunks = list(engine.stream("abcabc", WARM, max_tokens=30, ignore_eos=True))
    (whole,) = engine.generate("abcabc", WARM, max_tokens=30, ignore_eos=True)
    assert "".join(c.text for c in chunks) == whole.text
    assert [t for c in chunks for t in c.token_ids] == whole.token_ids
    assert [o for c in chunks for o in c.origins] == whole.origins
    assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len(chunks) == whole.stats.cycles


def test_leaving_a_stream_cancels_it(engine):
    stream = engine.stream("abc", WARM, max_tokens=120, ignore_eos=True)
    next(stream)
    stream.close()
    (done,) = engine.generate("hh", WARM, max_tokens=2)  # the cancelled row is gone before this one is over
    assert engine.stats["waiting"] == 0
    assert len(done.token_ids) <= 2


def test_cancel(engine):
    (full,) = engine.generate("abc", WARM, max_tokens=60, ignore_eos=True)
    (ticket,) = engine.submit("abc", WARM, GenerationOptions(max_tokens=60, ignore_eos=True))
    next(iter(ticket))
    ticket.cancel()
    cut = ticket.result()
    assert cut.finish_reason in ("cancelled", "length")
    assert cut.token_ids == full.token_ids[: len(cut.token_ids)]
    assert full.text.startswith(cut.text)


def test_stop_strings_wherever_they_fall(engine):
    """Stops of one, two and four letters anywhere in the text: inside a chunk and across two."""
    cool, how = replace(WARM, temperature=0.2, presence_penalty=0.0), {"max_tokens": 40, "ignore_eos": True}
    (full,) = engine.generate("abcabc", cool, **how)
    spelt = [letters.TOKENS[t] for t in full.token_ids]
    stops = [full.text[i : i + n] for i in range(0, len(full.text) - 4, 5) for n in (1, 2, 4)]
    fast, slow = (
        [
            engine.submit("abcabc", cool, GenerationOptions(**how, stop=(stop, "<never>"), speculation=s))[0]
            for stop in stops
        ]
        for s in (Speculation(), OFF)
    )
    inside = 0
    for stop, a, b in zip(stops, fast, slow, strict=True):
        quick, plain = a.result(), b.result()
        assert same(quick, plain)
        assert (quick.text, quick.finish_reason) == (full.text.split(stop)[0], "stop")
        assert quick.token_ids == full.token_ids[: len(quick.token_ids)]
        assert quick.stats.emitted == len(quick.token_ids) == len(quick.origins)
        shown = "".join(letter for letter in spelt[: len(quick.token_ids)] if len(letter) == 1)
        assert shown.endswith(stop), "the token that completes the stop is the last one"
        inside += quick.origins[-1] is Origin.ACCEPTED
    assert inside, "no stop fell inside a chunk, so the test has shown little"


def test_a_stop_string_that_does_not_come_holds_nothing_back(engine):
    how = {"max_tokens": 20, "ignore_eos": True}
    (full,) = engine.generate("abcabc", WARM, **how)
    (held,) = engine.generate("abcabc", WARM, stop=full.text[-3:] + "zzz", **how)
    assert same(full, held)


def test_stop_tokens_and_end_tokens(engine):
    (full,) = engine.generate("abcabc", WARM, max_tokens=40, ignore_eos=True)
    wanted = full.token_ids[7]
    (cut,) = engine.generate("abcabc", WARM, max_tokens=40, ignore_eos=True, stop_token_ids={wanted})
    assert cut.token_ids == full.token_ids[: full.token_ids.index(wanted) + 1]
    assert cut.finish_reason == "stop"
    ended = engine.generate(PROMPTS * 2, [replace(WARM, seed=i) for i in range(8)], max_tokens=40)
    stopped = [c for c in ended if c.finish_reason == "stop"]
    assert stopped
    assert all(c.token_ids[-1] == 0 and 0 not in c.token_ids[:-1] and "<end>" not in c.text for c in stopped)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_max_tokens(engine, most):
    (done,) = engine.generate("abc", WARM, max_tokens=most, ignore_eos=True)
    assert (len(done.token_ids), done.finish_reason) == (most, "length")


def test_min_tokens(engine):
    hows = [replace(WARM, seed=i, logit_bias={0: 3.0}) for i in range(8)]
    fast, slow = (
        engine.generate(["abc"] * 8, hows, max_tokens=12, min_tokens=4, speculation=s) for s in (Speculation(), OFF)
    )
    assert all(map(same, fast, slow))
    assert all(0 not in c.token_ids[:4] for c in fast)
    assert any(c.finish_reason == "stop" for c in fast)


def test_logprobs_are_the_models_own(engine):
    how = replace(WARM, top_k=4, logit_bias={5: 1.0})
    fast, slow = (
        engine.generate("abcabc", how, max_tokens=25, ignore_eos=True, logprobs=3, speculation=s)[0]
        for s in (Speculation(), OFF)
    )
    assert [entry.token_id for entry in fast.logprobs] == fast.token_ids == slow.token_ids
    prompt = [1, *ids("abcabc"), 2]
    with torch.inference_mode():
        logits = letters.plain()(torch.tensor([prompt + fast.token_ids])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)
    for entry, other, row in zip(fast.logprobs, slow.logprobs, expected, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        assert entry.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [v for _, v in entry.top_logprobs] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
        assert [t for t, _ in entry.top_logprobs] == [t for t, _ in other.top_logprobs]
    (bare,) = engine.generate("abc", how, max_tokens=3, logprobs=0)
    assert all(entry.top_logprobs == () for entry in bare.logprobs)
    (none,) = engine.generate("abc", how, max_tokens=3)
    assert none.logprobs == []


@pytest.mark.parametrize(
    ("prompt", "sampling", "options", "said"),
    [
        ([], None, {}, "the prompt is empty"),
        ([999], None, {}, "outside 0 to 18"),
        ("a" * 500, None, {}, "context holds 160"),
        ("a", Sampling(logit_bias={99: 1.0}), {}, "logit_bias names token 99"),
        ("a", None, {"stop_token_ids": {99}}, "stop_token_ids names token 99"),
        ("a", None, {"speculation": Speculation(verify="magic")}, "magic"),
        ("a", None, {"speculation": Speculation(drafter="magic")}, "magic"),
        ("a", Sampling(temperature=1.0), {"speculation": Speculation(verify="greedy")}, "needs temperature 0"),
        ("a", None, {"max_tokens": 3, "min_tokens": 4}, "min_tokens is 4"),
        ("a", None, {"json_schema": True, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(engine, prompt, sampling, options, said):
    with pytest.raises(ValueError, match=said) as caught:
        engine.submit(prompt, sampling, GenerationOptions(**options))
    assert "\n" not in str(caught.value)
    assert engine.generate("a", WARM, max_tokens=1)[0].finish_reason in ("length", "stop"), "the engine goes on"


@pytest.mark.parametrize(
    ("options", "said"),
    [({"n": 0}, "n is 0"), ({"logprobs": 200}, "logprobs is 200"), ({"stop": ("",)}, "stop string is empty")],
)
def test_options_are_checked(options, said):
    with pytest.raises(ValueError, match=said):
        GenerationOptions(**options)


def test_a_stream_is_one_sample(engine):
    with pytest.raises(ValueError, match="n is 2"):
        engine.stream("a", WARM, n=2)


def test_a_bad_prompt_among_good_ones_leaves_nothing_behind(engine):
    with pytest.raises(ValueError, match="outside"):
        engine.generate([ids("abc"), [999]], WARM, max_tokens=100)
    engine.generate("a", WARM, max_tokens=1)
    assert engine.stats["waiting"] == 0


def test_submit_from_many_threads(engine):
    expected = engine.generate(PROMPTS, WARM, max_tokens=10)
    found: dict[int, list[Completion]] = {}

    def ask(i: int) -> None:
        found[i] = [t.result() for p in PROMPTS for t in engine.submit(p, WARM, GenerationOptions(max_tokens=10))]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == list(range(3))
    assert all(same(a, b) for done in found.values() for a, b in zip(done, expected, strict=True))


def test_stats_count_what_was_emitted(make):
    with make() as engine:
        before: dict[str, Any] = engine.stats
        assert before["tokens"] == 0
        done = engine.generate(PROMPTS, WARM, max_tokens=10, stop=("h",))
        after = engine.stats
    assert after["tokens"] == sum(len(c.token_ids) for c in done)
    assert after["drafted"] == sum(sum(c.stats.drafted) for c in done)
    assert after["wasted"] == sum(c.stats.wasted for c in done)
    assert after["failures"] == {}


def test_closing_ends_what_is_under_way(make):
    engine = make()
    tickets = [engine.submit("abc", WARM, GenerationOptions(max_tokens=100, ignore_eos=True))[0] for _ in range(3)]
    next(iter(tickets[0]))
    engine.close()
    assert {ticket.result().finish_reason for ticket in tickets} <= {"cancelled", "length"}
    with pytest.raises(ValueError, match="the engine is closed"):
        engine.submit("abc")
    engine.close()
    assert (engine.stats["running"], engine.stats["waiting"]) == (0, 0)


def test_the_context_ends_a_request(engine):
    (done,) = engine.generate(ids("abcd" * 38), WARM, max_tokens=50, ignore_eos=True)
    assert (len(done.token_ids), done.finish_reason) == (160 - 152, "length")
