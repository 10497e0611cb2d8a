"""What others build on, frozen: verbs and flags, public names, what an import pulls in."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest
import typer

import slipstream
from slipstream.cli.app import app

DECODING = ["--model", "--drafter", "--verify", "--depth", "--option"]
BY_ANYONE = ["--model", "--engine", *DECODING[1:]]
SAMPLING = ["--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--max-tokens"]
FLAGS = {
    "generate": [
        *BY_ANYONE,
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
    "audit": [
        *BY_ANYONE,
        "--tree",
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
    "bench": [
        "--model",
        "--engine",
        "--drafter",
        "--verify",
        "--depth",
        "--option",
        "--temperature",
        "--batch",
        "--workload",
        "--max-tokens",
        "--repeats",
        "--hold",
        "--dtype",
        "--device",
        "--trust-remote-code",
        "--out",
        "--against",
        "--json",
        "--help",
    ],
    "train": [
        "--data",
        "--out",
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
}
NAMES = ["Completion", "Engine", "GenerationOptions", "Limits", "Sampling", "Speculation", "hf"]


def flags(verb, name: str) -> dict[str, list[str]]:
    if inner := getattr(verb, "commands", None):
        return {key: value for n, v in inner.items() for key, value in flags(v, f"{name} {n}".strip()).items()}
    parameters = verb.get_params(verb.make_context(name, [], resilient_parsing=True))
    return {name: [option for p in parameters for option in p.opts if option.startswith("--")]}


def test_verbs_and_flags_are_frozen():
    assert flags(typer.main.get_command(app), "") == FLAGS


def test_public_names_are_frozen_and_there():
    assert slipstream.__all__ == NAMES
    assert all(getattr(slipstream, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="it has Completion, Engine"):
        _ = slipstream.Nonsense


def test_the_import_is_light():
    heavy = "transformers", "fastapi", "matplotlib", "typer", "vllm", "xllamacpp"
    code = f"import slipstream, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


CAPTURED = "captured", "express", "sizes", "stock"  # what has to do with captured cycles


def test_modules_import_without_what_a_bare_machine_lacks():
    """Everything below the command line but serving runs with torch, transformers and what those bring."""
    missing = "jaxtyping", "typer", "rich", "gguf", "matplotlib", "fastapi"
    # Triton comes with torch's builds for CUDA; what stands on it is imported where a model lies on a GPU
    gpu = () if find_spec("triton") else (".gpu", "models.gpu_", "eagle_gpu", *map("native.{}".format, CAPTURED))
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
