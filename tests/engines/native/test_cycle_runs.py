"""A row that decodes alone takes several cycles at a time, with the output and the counts of single ones."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator

import pytest
import torch

import letters
import slipstream as ss
from slipstream.engines.native.cycle_runs import CycleRuns
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.options import GenerationOptions
from slipstream.kernels.cpu.decoder import kernel
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.target import Target
from slipstream.models.weights.linears import pack_linears

pytestmark = pytest.mark.skipif(kernel() is None, reason="needs a C++ compiler")
GREEDY = ss.Sampling(temperature=0)
LONG = {"max_tokens": 50, "ignore_eos": True}
calls: list[int] = []  # cycles of each call


@pytest.fixture
def engine(request, monkeypatch) -> Iterator[NativeEngine]:
    given, model = letters.target(), copy.deepcopy(letters.plain())
    pack_linears(model)
    calls.clear()
    own = TorchModel.run_cycles

    def counted(self, row, most, *others):
        calls.append(len(cycles := own(self, row, most, *others)))
        return cycles

    monkeypatch.setattr(TorchModel, "run_cycles", counted)
    with NativeEngine(Target(given.files, TorchModel(model), given.text), getattr(request, "param", None)) as opened:
        yield opened


@pytest.fixture
def depths(monkeypatch) -> list[int]:
    """Receives the depth of each cycle that runs in a call with others."""
    own, found = TorchModel.run_cycles, list[int]()

    def counted(self, row, most, depth=0, *others):
        cycles = own(self, row, most, depth, *others)
        found.extend([depth] * len(cycles))
        return cycles

    monkeypatch.setattr(TorchModel, "run_cycles", counted)
    return found


def both(engine: NativeEngine, monkeypatch, **options) -> tuple[ss.Completion, ss.Completion]:
    """With several cycles per call, and one by one."""
    several = engine.generate("abc", **options)[0]
    assert max(calls, default=0) > 2
    with monkeypatch.context() as patch:
        patch.setattr(CycleRuns, "_suits", lambda self, job: False)
        return several, engine.generate("abc", **options)[0]


def same(several: ss.Completion, single: ss.Completion) -> bool:
    fields = "text", "token_ids", "origins", "finish_reason"
    assert several.stats.cycles == single.stats.cycles == len(several.token_ids) or several.finish_reason == "stop"
    return all(getattr(several, name) == getattr(single, name) for name in fields)


def test_output_and_counts_are_those_of_single_cycles(engine, monkeypatch):
    several, single = both(engine, monkeypatch, sampling=GREEDY, **LONG)
    assert same(several, single)
    assert several.tau == 1.0


@pytest.mark.parametrize("engine", [None, "ngram"], indirect=True)
@pytest.mark.parametrize("verify", ["token", "block", "coupled"])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_sampled_tokens_are_those_of_single_cycles(engine, monkeypatch, verify, temperature):
    options = {**LONG, "speculation": ss.Speculation(verify=verify, off=True)}
    texts = set()
    for seed in range(6):
        several, single = both(engine, monkeypatch, sampling=ss.Sampling(temperature, seed=seed), **options)
        assert same(several, single)
        texts.add(several.text)
    assert len(texts) == 6 or temperature < 1


@pytest.mark.parametrize(
    "limits", [{"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 5, "top_p": 0.9, "min_p": 0.05}]
)
@pytest.mark.parametrize("verify", ["block", "coupled"])
def test_truncated_laws_are_those_of_single_cycles(engine, monkeypatch, verify, limits):
    options = {**LONG, "speculation": ss.Speculation(verify=verify, off=True)}
    whole = {engine.generate("abc", ss.Sampling(1.3, seed=seed), **options)[0].text for seed in range(6)}
    texts = set()
    for seed in range(6):
        several, single = both(engine, monkeypatch, sampling=ss.Sampling(1.3, seed=seed, **limits), **options)
        assert same(several, single)
        texts.add(several.text)
    assert texts != whole


CHANGES = {
    "repetition": {"repetition_penalty": 1.3},
    "presence and frequency": {"presence_penalty": 0.7, "frequency_penalty": 0.3},
    "all penalties": {"repetition_penalty": 0.8, "presence_penalty": -0.4, "frequency_penalty": 0.9},
    "bias": {"logit_bias": {3: 1.5, 5: -2.0, 7: 0.1}},
    "allowed": {"allowed_token_ids": frozenset({2, 5, 3, 9, 11})},
    "suppressed": {"suppress_tokens": frozenset({4, 8})},
    "all": {
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "logit_bias": {4: 0.7},
        "allowed_token_ids": frozenset(range(2, 12)),
        "suppress_tokens": frozenset({6}),
        "top_k": 6,
        "top_p": 0.9,
    },
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_changed_logits_are_those_of_single_cycles(engine, monkeypatch, temperature, changes):
    options, texts = {**LONG, "speculation": ss.Speculation(off=True)}, []
    for seed in range(4):
        asked, plain = (ss.Sampling(temperature, seed=seed, **params) for params in (changes, {}))
        several, single = both(engine, monkeypatch, sampling=asked, **options)
        assert same(several, single)
        texts.append((several.text, engine.generate("abc", plain, **options)[0].text))
    assert any(one != other for one, other in texts)


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_no_end_comes_before_the_least_number_of_tokens(engine, monkeypatch, temperature):
    sampling = ss.Sampling(temperature, seed=5)
    tokens = engine.generate("abc", sampling, **LONG)[0].token_ids
    options = {"max_tokens": 50, "stop_token_ids": [tokens[3]]}
    assert len(engine.generate("abc", sampling, **options)[0].token_ids) <= 4
    several, single = both(engine, monkeypatch, sampling=sampling, min_tokens=30, **options)
    assert same(several, single)
    assert len(several.token_ids) >= 30


def test_text_ends_at_stop_strings_end_tokens_and_limits(engine, monkeypatch):
    text = engine.generate("abc", GREEDY, **LONG)[0].text
    for options in ({"stop": [text[20:23]]}, {"stop_token_ids": [letters.TOKENS.index(text[9])]}, {"max_tokens": 11}):
        assert same(*both(engine, monkeypatch, sampling=GREEDY, **{**LONG, **options}))


@pytest.mark.parametrize("engine", ["ngram"], indirect=True)
def test_a_drafter_goes_on_after_cycles_without_drafts(engine, monkeypatch):
    options = {"sampling": GREEDY, "max_tokens": 120, "ignore_eos": True}
    several = [engine.generate(prompt, **options)[0] for prompt in ("abc", "ponm", "hgfe")]
    monkeypatch.setattr(CycleRuns, "_suits", lambda self, job: False)
    assert [engine.generate(done, **options)[0].token_ids for done in ("abc", "ponm", "hgfe")] == [
        done.token_ids for done in several
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": GREEDY, "logprobs": 2},
        {"sampling": GREEDY, "regex": "[a-p]{50}", "ignore_eos": False},
    ],
)
def test_what_needs_the_logits_is_decoded_cycle_by_cycle(engine, options):
    assert len(engine.generate("abc", **{**LONG, **options})[0].token_ids) == 50
    assert max(calls, default=0) <= 1


def asked_together(engine, rows: list[tuple[str, ss.Sampling, dict]]) -> list[ss.Completion]:
    """The completions of requests that are decoded side by side."""
    handles = [engine.submit(prompt, how, GenerationOptions(**options))[0] for prompt, how, options in rows]
    return [handle.result() for handle in handles]


OFF, TOKEN, COUPLED = (ss.Speculation(verify=rule, off=True) for rule in (None, "token", "coupled"))
TOGETHER = {
    "greedy": [(prompt, GREEDY, LONG) for prompt in ("abc", "hgf", "ponmlk")],
    "sampled": [(prompt, ss.Sampling(1.2, seed=4), {**LONG, "speculation": OFF}) for prompt in ("abc", "hgf")],
    "mixed": [
        ("abc", GREEDY, {**LONG, "max_tokens": 70}),
        ("ab", ss.Sampling(1.2, seed=1), {**LONG, "speculation": TOKEN}),
        ("hgfedcba", ss.Sampling(1.0, seed=2, top_k=5), {**LONG, "speculation": COUPLED}),
        ("kl", ss.Sampling(1.4, seed=3, top_p=0.8, min_p=0.02), {**LONG, "max_tokens": 33}),
        ("mm", ss.Sampling(0.8, seed=4, repetition_penalty=1.4, logit_bias={3: 1.0}), LONG),
        ("ijk", ss.Sampling(1.1, seed=5), {"stop": ["a"], "max_tokens": 60}),
        ("p", ss.Sampling(0.0, presence_penalty=0.5), {"stop_token_ids": [7], "max_tokens": 60, "min_tokens": 9}),
    ],
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", TOGETHER.values(), ids=TOGETHER)
def test_rows_together_have_the_output_and_counts_of_single_cycles(engine, monkeypatch, rows, threads):
    before, own = torch.get_num_threads(), TorchModel.run_rows
    ran: list[tuple[int, int]] = []  # rows and cycles of each call

    def counted(self, given, *others):
        cycles = own(self, given, *others)
        ran.append((len(given), len(cycles[0])))
        return cycles

    monkeypatch.setattr(TorchModel, "run_rows", counted)
    torch.set_num_threads(threads)
    try:
        for _ in range(2):  # once the price of a cycle is known, several are run
            together = asked_together(engine, rows)
        assert max(count for count, _ in ran) == len(rows)
        assert max(cycles for _, cycles in ran) > 2
        monkeypatch.setattr(CycleRuns, "_suits", lambda self, job: False)
        for several, single in zip(together, asked_together(engine, rows), strict=True):
            fields = "text", "token_ids", "origins", "finish_reason"
            assert all(getattr(several, name) == getattr(single, name) for name in fields)
            assert several.stats.cycles == single.stats.cycles
    finally:
        torch.set_num_threads(before)


def random_request(rng: random.Random) -> tuple[str, ss.Sampling, dict]:
    some = frozenset(rng.sample(range(1, 16), 9))
    sampling = ss.Sampling(
        temperature=rng.choice([0.0, 0.5, 1.0, 1.7]),
        top_k=rng.choice([0, 0, 1, 3, 200]),
        top_p=rng.choice([1.0, 1.0, 0.0, 0.6, 0.95]),
        min_p=rng.choice([0.0, 0.0, 0.1]),
        seed=rng.randrange(1000),
        repetition_penalty=rng.choice([1.0, 1.0, 1.2, 0.9]),
        presence_penalty=rng.choice([0.0, 0.0, 0.6]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.3]),
        logit_bias=rng.choice([{}, {}, {3: 1.0, 8: -1.0}]),
        allowed_token_ids=rng.choice([None, None, some]),
        suppress_tokens=rng.choice([frozenset(), frozenset({5})]),
    )
    speculation = rng.choice([OFF, OFF, COUPLED, TOKEN, ss.Speculation(depth=2, verify="coupled")])
    if sampling.temperature == 0:
        speculation = ss.Speculation(off=speculation.off, depth=speculation.depth)
    ends = {"stop_token_ids": sorted(some)[:1], "min_tokens": rng.choice([0, 0, 7])} if rng.random() < 0.4 else {}
    prompt = "".join(rng.choices("abcdefgh", k=rng.randrange(1, 12)))
    return prompt, sampling, {"max_tokens": rng.randrange(7, 40), "speculation": speculation, **ends}


@pytest.mark.parametrize("engine", ["ngram"], indirect=True)
def test_random_requests_together_have_the_output_of_single_cycles(engine, monkeypatch):
    rng = random.Random(1)
    for _ in range(25):
        rows = [random_request(rng) for _ in range(rng.randrange(1, 6))]
        several = asked_together(engine, rows)
        with monkeypatch.context() as patch:
            patch.setattr(CycleRuns, "_suits", lambda self, job: False)
            single = asked_together(engine, rows)
        for n, (one, other) in enumerate(zip(several, single, strict=True)):
            assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason), rows[n]
            assert (one.origins, one.stats.cycles) == (other.origins, other.stats.cycles), rows[n]
    assert max(calls) > 2


def test_rows_together_end_where_logits_are_not_finite(engine):
    with torch.no_grad():
        engine.target.model.model.base_model.norm.weight[3] = float("nan")
    for done in asked_together(engine, TOGETHER["mixed"]):
        assert done.finish_reason == "error"
        assert "not finite" in str(done.error)


def test_a_request_without_finite_logits_ends_with_a_sentence(engine):
    with torch.no_grad():
        engine.target.model.model.base_model.norm.weight[3] = float("nan")
    done = engine.generate("abc", GREEDY, **LONG)[0]
    assert done.finish_reason == "error"
    assert "not finite" in str(done.error)


@pytest.mark.model
def test_chains_of_the_shipped_head_are_those_of_single_cycles(monkeypatch, depths):
    """At fixed depths and by the policy, which asks for chains only: text, origins and counts."""
    from default import target

    prompt, options = "def merge(left, right):\n    # two sorted lists as one\n", {"max_tokens": 60, "ignore_eos": True}
    with NativeEngine(target(), "eagle") as opened:
        plain = opened.generate(prompt, GREEDY, speculation=ss.Speculation(off=True), **options)[0]
        assert opened.generate(prompt, GREEDY, **options)[0].token_ids == plain.token_ids
        for depth in (1, 2, 5):
            depths.clear()
            options["speculation"] = ss.Speculation(depth=depth)
            several = opened.generate(prompt, GREEDY, **options)[0]
            assert {depth} <= {*depths} <= {0, depth}
            with monkeypatch.context() as patch:
                patch.setattr(CycleRuns, "_suits", lambda self, job: False)
                single = opened.generate(prompt, GREEDY, **options)[0]
            assert several.token_ids == single.token_ids == plain.token_ids
            assert (several.origins, several.stats) == (single.origins, single.stats)
            assert several.tau > 1.5


PENALTIES = {"min_p": 0.05, "repetition_penalty": 1.1, "presence_penalty": 0.4, "frequency_penalty": 0.2}


TRUNCATED = {"top_k": 20, "top_p": 0.8}
CHAINS = [(verify, limits) for verify in ("coupled", "token", "block") for limits in ({}, TRUNCATED, PENALTIES)]
FIRST_CHAINS = [("coupled", PENALTIES), ("token", {}), ("block", TRUNCATED)]


@pytest.mark.model
@pytest.mark.parametrize(
    ("verify", "limits"),
    [pytest.param(*each, marks=() if each in FIRST_CHAINS else pytest.mark.slow) for each in CHAINS],
)
def test_sampled_chains_of_the_shipped_head_are_those_of_single_cycles(monkeypatch, depths, verify, limits):
    """Where draft and target draw from the same noise, the text is that of plain decoding, too."""
    from default import target

    sampling = ss.Sampling(0.9, seed=1, **limits)
    prompt, options = "def merge(left, right):\n    # two sorted lists as one\n", {"max_tokens": 60, "ignore_eos": True}
    with NativeEngine(target(), "eagle", verify) as opened:
        drafts = {**options, "speculation": ss.Speculation(depth=3)}
        several = opened.generate(prompt, sampling, **drafts)[0]
        assert {3} <= {*depths} <= {0, 3}
        with monkeypatch.context() as patch:
            patch.setattr(CycleRuns, "_suits", lambda self, job: False)
            single = opened.generate(prompt, sampling, **drafts)[0]
        assert (several.token_ids, several.origins, several.stats) == (single.token_ids, single.origins, single.stats)
        assert several.tau > 1.2
        if verify == "coupled":
            for way in (ss.Speculation(), ss.Speculation(off=True)):
                assert opened.generate(prompt, sampling, speculation=way, **options)[0].token_ids == several.token_ids
