"""What others build on, frozen: verbs and flags, public names, what an import pulls in."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import pytest
import typer

import letters_folder
import slipstream as ss
from slipstream.cli.app import app

DECODING = ["--model", "--drafter", "--verify", "--depth", "--option"]
BY_ANYONE = ["--model", "--engine", *DECODING[1:]]
SAMPLING = ["--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--max-tokens"]
PLAN = [*DECODING[:4], "--tree", "--option", "--dtype", "--device", "--invariant", "--trust-remote-code"]
PLAN += ["--route", "--small", "--threshold", "--score"]
FLAGS = {
    "generate": [
        *BY_ANYONE,
        "--plan",
        "--profile",
        "--learn",
        "--temperature",
        "--top-k",
        "--top-p",
        "--min-p",
        "--seed",
        "--repetition-penalty",
        "--presence-penalty",
        "--frequency-penalty",
        "--logit-bias",
        "--max-tokens",
        "--min-tokens",
        "--n",
        "--stop",
        "--stop-token-ids",
        "--ignore-eos",
        "--logprobs",
        "--json-schema",
        "--regex",
        "--grammar",
        "--system",
        "--file",
        "--prediction",
        "--raw",
        "--dtype",
        "--device",
        "--invariant",
        "--trust-remote-code",
        "--compare",
        "--tree",
        "--show-tree",
        "--json",
        "--help",
    ],
    "chat": [
        *BY_ANYONE[:-1],
        "--plan",
        "--tree",
        "--option",
        "--system",
        *SAMPLING[:-1],
        "--repetition-penalty",
        "--presence-penalty",
        "--frequency-penalty",
        "--max-tokens",
        "--dtype",
        "--device",
        "--invariant",
        "--trust-remote-code",
        "--help",
    ],
    "transcribe": [
        *DECODING,
        "--language",
        "--task",
        "--temperature",
        "--seed",
        "--prompt",
        "--previous-text",
        "--timestamps",
        "--format",
        "--dtype",
        "--device",
        "--invariant",
        "--trust-remote-code",
        "--compare",
        "--json",
        "--help",
    ],
    "audit": [
        *BY_ANYONE,
        "--tree",
        "--plan",
        "--temperature",
        "--dtype",
        "--device",
        "--trust-remote-code",
        "--invariant",
        "--table",
        "--seed",
        "--samples",
        "--self-test",
        "--json",
        "--help",
    ],
    "serve": [
        "--host",
        "--port",
        "--engine",
        "--drafter",
        "--verify",
        "--depth",
        "--tree",
        "--option",
        "--plan",
        "--profile",
        "--learn",
        "--rows",
        "--warm-up",
        "--max-requests",
        "--max-seconds",
        "--max-loaded",
        "--max-memory",
        "--engine-process",
        "--api-server-count",
        "--api-key-file",
        "--cors-origin",
        "--log-format",
        "--log-prompts",
        "--dtype",
        "--device",
        "--invariant",
        "--trust-remote-code",
        "--help",
    ],
    "bench": [
        "--model",
        "--engine",
        "--drafter",
        "--verify",
        "--depth",
        "--option",
        "--plan",
        "--temperature",
        "--batch",
        "--task",
        "--route",
        "--small",
        "--threshold",
        "--score",
        "--curve",
        "--limit",
        "--quality-batch",
        "--time-limit",
        "--workload",
        "--max-tokens",
        "--repeats",
        "--hold",
        "--dtype",
        "--device",
        "--trust-remote-code",
        "--out",
        "--against",
        "--watts",
        "--forecast",
        "--sample",
        "--json",
        "--help",
    ],
    "profile": [
        "--model",
        "--drafter",
        "--option",
        "--depth",
        "--batch",
        "--temperature",
        "--workload",
        "--max-tokens",
        "--dtype",
        "--device",
        "--trust-remote-code",
        "--out",
        "--merge",
        "--watts",
        "--json",
        "--help",
    ],
    "train": [
        "--out",
        "--data",
        "--corpus",
        "--model",
        "--option",
        "--device",
        "--trust-remote-code",
        "--minutes",
        "--json",
        "--help",
    ],
    "models list": ["--json", "--help"],
    "models pull": ["--trust-remote-code", "--help"],
    "models inspect": ["--trust-remote-code", "--json", "--help"],
    "models verify": ["--json", "--help"],
    "models convert": ["--trust-remote-code", "--help"],
    "models compile": ["--dtype", "--help"],
    "models remove": ["--help"],
    "plan show": [*PLAN, "--full", "--json", "--help"],
    "plan list": ["--json", "--help"],
    "plan diff": ["--json", "--help"],
    "plan lower": [*PLAN, "--emit", "--json", "--help"],
    "plan optimise": [
        *PLAN,
        "--pass",
        "--candidate",
        "--watts",
        "--latency",
        "--print-before",
        "--print-after",
        "--print-before-all",
        "--print-after-all",
        "--json",
        "--help",
    ],
    "plan forecast": [
        "--model",
        "--drafter",
        "--option",
        "--depth",
        "--batch",
        "--temperature",
        "--dtype",
        "--device",
        "--bandwidth",
        "--flops",
        "--weights",
        "--acceptance",
        "--draft-cost",
        "--profile",
        "--workload",
        "--picture",
        "--watts",
        "--json",
        "--help",
    ],
    "plan advise": ["--model", "--candidate", "--dtype", "--device", "--json", "--help"],
    "plan predictors": [
        "--model",
        "--drafter",
        "--option",
        "--predictor",
        "--depth",
        "--temperature",
        "--workload",
        "--draft-cost",
        "--dtype",
        "--device",
        "--picture",
        "--json",
        "--help",
    ],
    "plan calibrate": [
        "--small",
        "--task",
        "--model",
        "--score",
        "--save",
        "--margin",
        "--max-share",
        "--max-tokens",
        "--batch",
        "--dtype",
        "--device",
        "--json",
        "--help",
    ],
    "plan choose": [
        "--small",
        "--task",
        "--model",
        "--margin",
        "--verify",
        "--max-tokens",
        "--batch",
        "--dtype",
        "--device",
        "--json",
        "--help",
    ],
    "plan explain": [*PLAN, "--pass", "--candidate", "--watts", "--latency", "--json", "--help"],
    "plan levels": [
        "--prompt",
        *PLAN,
        "--candidate",
        *SAMPLING[:-1],
        "--repetition-penalty",
        "--presence-penalty",
        "--frequency-penalty",
        "--max-tokens",
        "--json",
        "--help",
    ],
}
NAMES = ["Audio", "Chunk", "Completion", "Engine", "GenerationOptions", "Limits", "Plan", "Sampling", "Speculation"]
NAMES += ["build_plan", "hf", "load_plan", "open_plan", "transcribe"]

SIGNATURES = {  # parameters with their defaults; … is one that is made anew
    "Audio": "source, language=None, task='transcribe', timestamps=True, prompt=None",
    "transcribe": "engine, audio, options=None, on_progress=None",
    "Engine": "model='smollm2-135m', drafter='ngram', verify=None, depth=None, shape=None, options=None, limits=None,"
    " watch=None, policy=None, plan=None, profile=None, learn=False, warm_up=False, **loading",
    "Engine.generate": "prompts, sampling=None, **options",
    "Engine.stream": "prompt, sampling=None, **options",
    "Engine.submit": "prompt, sampling=None, options=None",
    "Sampling": "temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=None, repetition_penalty=1.0,"
    " presence_penalty=0.0, frequency_penalty=0.0, logit_bias=…, allowed_token_ids=None, suppress_tokens=frozenset()",
    "GenerationOptions": "max_tokens=128, min_tokens=0, stop=(), stop_token_ids=frozenset(), ignore_eos=False,"
    " logprobs=None, n=1, grammar=None, json_schema=None, regex=None, speculation=…, raw=False,"
    " prompt_logprobs=None, tenant='', prediction=None",
    "Speculation": "off=False, drafter=None, depth=None, verify=None, shape=None, history=True",
    "Limits": "rows=None, tokens=None, prefill=None, retained=32768, retained_bytes=None",
    "Completion": "text, token_ids, finish_reason, logprobs, prompt_tokens, origins, stats, guarantee, error=None,"
    " prompt_logprobs=None, queue_seconds=0.0, route=None",
    "Chunk": "text, token_ids, origins, logprobs=(), finish_reason=None, error=None, pieces=(), prompt_logprobs=(),"
    " draft=None",
    "hf.generate": "model, input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus=False,"
    " streamer=None, drafter='ngram', depth=None, verify=None, options=None, seed=None, stop_strings=None,"
    " tokenizer=None, **inputs",
}
DERIVED = ["acceptance", "completion_tokens", "lossless", "repeatable", "rule", "tau"]  # properties of a completion
RUN = ["engine", "model", "quantised", "drafter", "rule", "lossless", "repeatable", "prompt_tokens"]
SAMPLE = ["text", "finish_reason", "completion_tokens", "token_ids", "origins"]
COUNTS = ["tau", "acceptance", "drafted", "wasted"]
TIMES = ["tokens_per_second", "seconds_to_first_token", "drafting_note", "interrupted"]


def flags(verb, name: str) -> dict[str, list[str]]:
    if inner := getattr(verb, "commands", None):
        return {key: value for n, v in inner.items() for key, value in flags(v, f"{name} {n}".strip()).items()}
    parameters = verb.get_params(verb.make_context(name, [], resilient_parsing=True))
    return {name: [option for p in parameters for option in p.opts if option.startswith("--")]}


def test_verbs_and_flags_are_frozen():
    assert flags(typer.main.get_command(app), "") == FLAGS


def test_public_names_are_frozen_and_there():
    assert ss.__all__ == NAMES
    assert all(getattr(ss, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="it has Audio, Chunk, Completion, Engine"):
        _ = ss.Nonsense


def parameters(function) -> str:
    return ", ".join(
        ("**" if p.kind is p.VAR_KEYWORD else "")
        + p.name
        + ("" if p.default is p.empty else f"={'…' if repr(p.default) == '<factory>' else repr(p.default)}")
        for p in inspect.signature(function).parameters.values()
        if p.name != "self"
    )


def test_signatures_are_frozen():
    found = {name: parameters(attrgetter(name)(ss)) for name in SIGNATURES}
    assert found == SIGNATURES


def test_what_a_completion_derives_is_frozen():
    assert [name for name, value in sorted(vars(ss.Completion).items()) if isinstance(value, property)] == DERIVED


def test_the_json_of_generate_is_frozen(slipstream, tmp_path):
    words = "generate", "abcabc", "-m", str(letters_folder.write(tmp_path)), "--max-tokens", "4", "--json"
    assert list(slipstream(*words).report) == [*RUN, *SAMPLE, *COUNTS, *TIMES]
    told = slipstream(*words, "--logprobs", "2").report
    assert list(told) == [*RUN, *SAMPLE, *COUNTS, "logprobs", *TIMES]
    assert list(told["logprobs"]["content"][0]) == ["token", "token_id", "logprob", "top_logprobs"]
    several = slipstream(*words, "--n", "2").report
    assert list(several) == [*RUN, "completion_tokens", *COUNTS, "choices", *TIMES]
    assert list(several["choices"][0]) == ["index", *SAMPLE, *COUNTS]


def test_peers_import_nothing_from_the_native_engine():
    """What both need stands in `engines`."""
    engines = Path(ss.__file__).parent / "engines"
    shared = [path for path in engines.glob("*.py") if path.name != "__init__.py"]
    peers = [path for folder in ("llamacpp", "transformers", "vllm") for path in (engines / folder).glob("*.py")]
    assert len(peers) > 8
    for path in (*shared, *peers):
        assert not re.search(r"slipstream\.engines\.native", path.read_text(encoding="utf-8")), path


def test_the_import_is_light():
    heavy = "transformers", "fastapi", "matplotlib", "typer", "vllm", "xllamacpp"
    code = f"import slipstream, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NEEDS_TRITON = ".gpu", ".captured", ".input_graph", ".device"  # parts of the names of modules


def test_modules_import_without_what_a_bare_machine_lacks():
    """Everything below the command line but serving runs with torch, transformers and what those bring."""
    missing = "jaxtyping", "typer", "rich", "gguf", "matplotlib", "fastapi"
    # Triton comes with torch's builds for CUDA; what stands on it is imported where a model lies on a GPU
    gpu = () if find_spec("triton") else NEEDS_TRITON
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({missing}))\n"
        "import pkgutil, importlib, slipstream\n"
        "names = [m.name for m in pkgutil.walk_packages(slipstream.__path__, 'slipstream.')]\n"
        "bare = 'core', 'kernels', 'models', 'drafters', 'plan', 'engines', 'bench', 'train'\n"
        "bare = [n for n in names if n.split('.')[1] in bare]\n"
        f"bare = [n for n in bare if not any(word in n for word in {gpu})]\n"
        "[importlib.import_module(n) for n in bare]\n"
        "print(len(bare))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15


def test_packages_of_tests_are_not_the_users():
    from slipstream.models.compiled import package
    from slipstream.models.sources import store

    assert package.home() != store.home().parent / "packages"
