"""The engine's thread: what happens when it ends, when the process forks, and when nobody listens any more."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

import letters
from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from within import within

GREEDY = Sampling(temperature=0)
LONG = GenerationOptions(150, ignore_eos=True)


@pytest.mark.parametrize("error", [SystemExit("enough"), KeyboardInterrupt(), GeneratorExit()])
def test_a_thread_that_ends_ends_all_requests_and_refuses_new_ones(error):
    submitted = threading.Event()

    def watch(draft, law, verdict):
        submitted.wait(60)  # the thread must not end before all requests are there
        raise error

    with NativeEngine(letters.target(), "none", watch=watch, limits=Limits(rows=1)) as engine:
        tickets = [ticket for _ in range(3) for ticket in engine.submit("abc", GREEDY, LONG)]
        submitted.set()
        finished = [within(60, ticket.result) for ticket in tickets]
        assert [done.finish_reason for done in finished] == ["error"] * 3
        assert all(type(error).__name__ in done.error for done in finished)
        with pytest.raises(ValueError, match=f"the engine has stopped .{type(error).__name__}.*; make a new one"):
            within(60, lambda: engine.generate("abc"))


@pytest.mark.failures
def test_a_callback_that_fails_ends_requests_and_the_engine_goes_on():
    def watch(draft, law, verdict):
        if failing:
            raise RuntimeError("no paper")

    failing = True
    with NativeEngine(letters.target(), "none", watch=watch) as engine:
        (done,) = within(60, lambda: engine.generate("abc", GREEDY, max_tokens=3))
        assert (done.finish_reason, done.error) == ("error", "verification failed: no paper")
        failing = False
        (done,) = within(60, lambda: engine.generate("abc", GREEDY, max_tokens=3, ignore_eos=True))
        assert done.finish_reason == "length"


@pytest.mark.failures
def test_an_engine_is_not_closed_by_its_own_callback():
    with NativeEngine(letters.target(), "none", watch=lambda *_: engine.close()) as engine:
        (done,) = within(60, lambda: engine.generate("abc", GREEDY, max_tokens=3))
        assert "cannot be closed from its own thread" in done.error


def test_engines_that_share_a_target_say_what_each_says_alone():
    target, prompts = letters.target(), ["abc", "ponm", "cabdeaf", "h"]
    plans = {"none": Sampling(temperature=0), "ngram": Sampling(temperature=0.8, seed=3)}
    expected = {}
    for name, sampling in plans.items():
        with NativeEngine(letters.target(), name, "coupled" if sampling.temperature else None) as engine:
            done = engine.generate(prompts, sampling, max_tokens=40, ignore_eos=True)
            expected[name] = [completion.token_ids for completion in done]
    engines = {name: NativeEngine(target, name, "coupled" if name == "ngram" else None) for name in plans}
    tickets = [
        (name, n, engine.submit(prompt, plans[name], GenerationOptions(40, ignore_eos=True))[0])
        for _ in range(4)
        for n, prompt in enumerate(prompts)
        for name, engine in engines.items()
    ]
    for name, n, ticket in tickets:
        completion = within(60, ticket.result)
        assert (completion.error, completion.token_ids) == (None, expected[name][n])
    for engine in engines.values():
        assert not engine.stats["failures"]
        engine.close()
    target.model.check_integrity()  # rows are given back after their last token, so only now


def test_a_stream_that_nobody_reads_is_cancelled():
    with NativeEngine(letters.target(), "none") as engine:
        stream = engine.stream("abc", GREEDY, max_tokens=150, ignore_eos=True)
        ticket = stream._handle
        del stream
        assert ticket.cancelled
        assert within(60, ticket.result).finish_reason in ("cancelled", "length")


def test_a_closed_stream_has_no_more_chunks():
    with NativeEngine(letters.target(), "none") as engine:
        stream = engine.stream("abc", GREEDY, max_tokens=150, ignore_eos=True)
        assert next(stream).token_ids
        stream.close()
        assert list(stream) == []


FORKED = """
import os, sys
import letters
from slipstream.core.sampling import Sampling
from slipstream.engines.native.engine import NativeEngine

engine = NativeEngine(letters.target(), "none")
engine.generate("abc", Sampling(temperature=0), max_tokens=2)
if not os.fork():
    try:
        engine.generate("abc", Sampling(temperature=0), max_tokens=2)
    except ValueError as error:
        print(error, flush=True)
    engine.close()
    sys.exit(0)
os.wait()
print(len(engine.generate("abc", Sampling(temperature=0), max_tokens=2, ignore_eos=True)[0].token_ids))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork")
def test_a_forked_process_is_told_to_make_its_own_engine():
    words, env = [sys.executable, "-W", "ignore", "-c", FORKED], os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = "this process was forked from the one that made the engine; make an engine in this one"
    assert done.stdout.splitlines() == [said, "2"]
