"""The vLLM engine: its process and protocol with a stand-in for vLLM, and the real one where there is one."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest

import fake_vllm
import letters_folder
from slipstream.core.sampling import Sampling
from slipstream.core.types import Origin
from slipstream.engines import open_engine
from slipstream.engines.base import GenerationOptions
from slipstream.engines.vllm.engine import _environment
from slipstream.engines.vllm.settings import VllmConfig, speculation
from slipstream.plan.ir.build import build_plan

COLD = Sampling(temperature=0)
HERE = {"python": sys.executable}
REAL = os.environ.get("SLIPSTREAM_VLLM_PYTHON", "")
PARALLEL = os.environ.get("SLIPSTREAM_VLLM_MODEL", "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(letters_folder.write(tmp_path_factory.mktemp("letters")))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(fake_vllm.write(tmp_path)))
    return monkeypatch


def test_tokens_origins_and_counts_come_back(folder, fake):
    with open_engine("vllm", folder, "ngram", "block", 2, HERE) as engine:
        (done,) = engine.generate([3, 4, 5], COLD, max_tokens=6, logprobs=1)
        assert done.token_ids == [3, 4, 5, 3, 4, 5]
        assert done.origins[:3] == [Origin.PLAIN, Origin.ACCEPTED, Origin.RECOVERED]
        assert (done.stats.drafted, done.stats.accepted) == ([3, 3], [2])
        assert [entry.logprob for entry in done.logprobs] == [-0.5] * 6
        assert engine.version == "vllm 0.0-fake"
        many = engine.generate([[3], [4, 5], [6]], COLD, max_tokens=4)
        assert [c.token_ids for c in many] == [[3] * 4, [4, 5, 4, 5], [6] * 4]
        assert [c.text for c in many] == ["aaaa", "bcbc", "dddd"]
        assert engine.stats["drafted"] > 0


def test_stops_cancel_and_errors(folder, fake):
    with open_engine("vllm", folder, "none", options=HERE) as engine:
        (cut,) = engine.generate([3, 4, 5], COLD, max_tokens=50, stop=("bc",))
        assert (cut.text, cut.finish_reason) == ("a", "stop")
        (ended,) = engine.generate([3, 0, 5], COLD, max_tokens=50)
        assert (ended.token_ids, ended.finish_reason) == ([3, 0], "stop")
        stream = engine.stream([3], COLD, max_tokens=150)
        next(stream)
        stream.close()
        (bad,) = engine.generate([3], Sampling(99.0), max_tokens=2)
        assert bad.error == "vllm refused it: temperature must not be 99"
        assert engine.generate([4], COLD, max_tokens=2)[0].token_ids == [4, 4]


def test_a_worker_that_dies_ends_its_requests_with_a_sentence(folder, fake):
    fake.setenv("FAKE_VLLM", "die")
    with open_engine("vllm", folder, "none", options=HERE) as engine:
        (done,) = engine.generate([3], COLD, max_tokens=4)
        assert (done.finish_reason, done.error) == ("error", "vLLM's process ended")
    fake.setenv("FAKE_VLLM", "killed")
    with open_engine("vllm", folder, "none", options=HERE) as engine:
        assert engine.generate([3], COLD, max_tokens=4)[0].error.endswith("a system runs out of memory")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("load", "no such architecture$"),
        ("illegal", "instructions that this processor lacks"),
        ("large", "killed, as happens where a system runs out of memory"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(folder, fake, how, said):
    fake.setenv("FAKE_VLLM", how)
    with pytest.raises(ValueError, match=said):
        open_engine("vllm", folder, "none", options=HERE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"drafter": "early_exit"}, "it offers none, ngram, suffix, draft_model, eagle"),
        ({"drafter": "draft_model"}, "needs a model"),
        ({"drafter": "ngram", "verify": "coupled"}, "it has token, block"),
        ({"drafter": "ngram", "options": {"python": "/nowhere/python"}}, "cannot run the interpreter"),
        ({"drafter": "ngram", "options": {**HERE, "ngram": "two"}}, "must be of type int"),
        ({"drafter": "none", "invariant": True, "options": HERE}, "no invariant mode"),
        ({"drafter": "none", "device": "cuda"}, "device is 'cuda'; vllm chooses its own"),
    ],
)
def test_mistakes_are_refused(folder, arguments, said):
    with pytest.raises(ValueError, match=said):
        open_engine("vllm", folder, **{"options": HERE, **arguments})


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"model_type": "speculators", "speculators_model_type": "eagle3"}, "eagle3"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
    ],
)
def test_the_folder_of_a_head_needs_no_tokenizer(tmp_path, config, method):
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = speculation("eagle", 3, None, VllmConfig(model=str(tmp_path)))
    assert asked is not None
    assert (asked["method"], asked["model"]) == (method, str(tmp_path))


def test_under_speculation_it_refuses_what_vllm_refuses(folder, fake):
    with open_engine("vllm", folder, "ngram", None, 2, HERE) as engine, pytest.raises(ValueError, match="min_p"):
        engine.submit([3], Sampling(1.0, min_p=0.1), GenerationOptions())


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_error_says_how_to_get_it(folder):
    with pytest.raises(ValueError, match=r"pip install 'slipstream-lm\[vllm\]'"):
        open_engine("vllm", folder, "none")


@pytest.mark.model
@pytest.mark.skipif(not REAL and find_spec("vllm") is None, reason="no vLLM here, nor SLIPSTREAM_VLLM_PYTHON")
def test_the_real_one_agrees_at_temperature_0():
    options, prompts = {"python": REAL} if REAL else {}, ["Repeat: the cat sat on the mat. The cat sat on", "Hello"]
    with open_engine("vllm", "smollm2-135m", "ngram", None, 3, options) as engine:
        fast = engine.generate(prompts, COLD, max_tokens=16)
    with open_engine("transformers", "smollm2-135m", "none") as engine:
        slow = engine.generate(prompts, COLD, max_tokens=16)
    assert [c.token_ids for c in fast] == [c.token_ids for c in slow]
    assert any(Origin.ACCEPTED in c.origins for c in fast)


def test_several_processes_on_a_cpu_get_cores_of_their_own(monkeypatch):
    """vLLM's own choice failed on a machine with one NUMA node."""
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3, 4})
    assert _environment(VllmConfig(tensor_parallel=2))["VLLM_CPU_OMP_THREADS_BIND"] == "0,1|2,3"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in _environment(VllmConfig())
    assert "VLLM_CPU_OMP_THREADS_BIND" not in _environment(VllmConfig(tensor_parallel=8))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "all")
    assert "VLLM_CPU_OMP_THREADS_BIND" not in _environment(VllmConfig(tensor_parallel=2))


@pytest.mark.skipif(not REAL or not PARALLEL, reason="no SLIPSTREAM_VLLM_PYTHON, or no SLIPSTREAM_VLLM_MODEL")
def test_a_lowered_plan_runs_in_two_processes_of_the_real_one():
    """The model must have an even number of heads, which the default model has not."""
    plan = build_plan(PARALLEL, "ngram", depth=4, context=1024)
    parallel = replace(plan, nodes=(replace(plan.nodes[0], tensor_parallel=2), *plan.nodes[1:]))
    words = "one two three four one two three four one two"
    with open_engine("vllm", PARALLEL, options={"python": REAL}, plan=parallel) as engine:
        (done,) = engine.generate(words, COLD, max_tokens=24, raw=True)
    with open_engine("native", PARALLEL, plan=plan) as engine:
        (native,) = engine.generate(words, COLD, max_tokens=24, raw=True)
    assert done.token_ids == native.token_ids
    assert Origin.ACCEPTED in done.origins
