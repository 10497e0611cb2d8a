"""Drafters, rules, policies and engines of other packages work wherever a name is taken."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import letters
import letters_folder
from slipstream.core import registry
from slipstream.core.sampling import Sampling
from slipstream.core.types import Budget
from slipstream.core.verify.block import Block
from slipstream.engines import engines, open_engine
from slipstream.engines.native.engine import NativeEngine
from slipstream.plan.policy.policies import Fixed

ROOT = Path(__file__).parents[2]
COLD = Sampling(temperature=0)

# tests first: they check types of what is imported after them
USES = """
import sys
import pytest
assert pytest.main([sys.argv[2], "-k", "repeat", "-q", "-p", "no:cacheprovider"]) == 0

import torch
from transformers import AutoModelForCausalLM
import slipstream as ss
from slipstream.cli import main
from slipstream.core.sampling import Sampling

folder = sys.argv[1]
with ss.Engine(folder, drafter="repeat", depth=3, options={"period": 1}) as engine:
    engine.generate("aaaa", Sampling(temperature=0), max_tokens=8)
    assert engine.stats["drafted"] > 0
model = AutoModelForCausalLM.from_pretrained(folder)
model.generate(torch.tensor([[3, 4, 3, 4]]), max_new_tokens=4, custom_generate=ss.hf.generate, drafter="repeat")

def run(expected, *words):
    try:
        main(words)
    except SystemExit as end:
        assert (end.code or 0) == expected, (words, end.code)

chosen = ("-m", folder, "-d", "repeat")
run(0, "generate", "abab", *chosen, "-o", "period=3", "--depth", "2", "--max-tokens", "6", "--json")
run(2, "generate", "abab", *chosen, "-o", "periods=3")
run(2, "generate", "abab", *chosen, "-o", "period=0")
run(0, "audit", *chosen, "--verify", "token", "--samples", "200", "--depth", "1")
run(0, "bench", *chosen, "--workload", "chat:1", "--max-tokens", "4", "--repeats", "2", "--depth", "2")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """The environment of a process that finds the example package."""
    place = tmp_path_factory.mktemp("site")
    source = place / "source"
    source.mkdir()
    for file in (ROOT / "examples" / "plugin_drafter").iterdir():
        if file.is_file():
            (source / file.name).write_bytes(file.read_bytes())
    words = [
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
        str(place / "installed"),
    ]
    subprocess.run([sys.executable, "-m", "pip", *words, str(source)], check=True, capture_output=True, timeout=120)
    paths = [str(place / "installed"), str(ROOT / "src"), str(ROOT / "tests")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def test_an_installed_drafter_keeps_the_contract_and_works_wherever_a_name_is_taken(installed, tmp_path):
    folder = letters_folder.write(tmp_path / "letters")
    contract = ROOT / "tests" / "contracts" / "test_drafters.py"
    words = [sys.executable, "-c", USES, str(folder), str(contract)]
    done = subprocess.run(words, env=installed, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout or "[100%]" in done.stdout
    assert "repeat has no option 'periods'; it takes period" in done.stderr
    assert "period is 0; it must be 1 or more" in done.stderr


class PluginRule(Block):
    name = "plugin"


class PluginPolicy(Fixed):
    @classmethod
    def build(cls) -> PluginPolicy:
        return cls(2)

    def budget(self, rows) -> list[Budget]:
        BUDGETS.append(len(rows))
        return super().budget(rows)


class PluginEngine(NativeEngine):
    pass


BUDGETS: list[int] = []
KINDS = {"rules": PluginRule, "policies": PluginPolicy, "engines": PluginEngine}


@pytest.fixture
def plugins(monkeypatch):
    """Entry points of a package that is not installed."""
    monkeypatch.setitem(sys.modules, "plugin_package", sys.modules[__name__])

    def entry_points(group: str) -> list[EntryPoint]:
        kind = KINDS.get(group.removeprefix("slipstream."))
        return [EntryPoint("plugin", f"plugin_package:{kind.__name__}", group)] if kind else []

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_a_rule_of_a_package(plugins, slipstream, tmp_path):
    folder = str(letters_folder.write(tmp_path))
    words = ("-m", folder, "--verify", "plugin", "--temperature", "1", "--max-tokens", "4", "--json")
    assert slipstream("generate", "abab", *words).report["rule"] == "plugin"
    assert "plugin" in NativeEngine.capabilities.rules


def test_a_policy_of_a_package_or_as_an_object(plugins):
    BUDGETS.clear()
    for policy in ("plugin", PluginPolicy(2)):
        with NativeEngine(letters.target(), "ngram", policy=policy) as engine:
            engine.generate("abcabcabc", COLD, max_tokens=8)
            assert engine.stats["drafted"] > 0
    assert len(BUDGETS) > 2
    with pytest.raises(ValueError, match="no policy called 'fast'; one of adaptive, fixed, plugin"):
        NativeEngine(letters.target(), policy="fast")
    with pytest.raises(ValueError, match="it must be a Policy or one of adaptive, fixed, plugin"):
        NativeEngine(letters.target(), policy=3)


def test_an_engine_of_a_package(plugins, tmp_path):
    assert "plugin" in engines
    with open_engine("plugin", str(letters_folder.write(tmp_path)), "ngram") as engine:
        assert isinstance(engine, PluginEngine)
        assert engine.generate("abab", COLD, max_tokens=4)[0].token_ids


def test_a_plugin_that_cannot_be_imported_is_one_sentence(monkeypatch):
    point = EntryPoint("broken", "no_such_module:Drafter", "slipstream.drafters")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    things = registry.Registry("drafter", {})
    with pytest.raises(ValueError, match="broken cannot be loaded from its plugin no_such_module:Drafter: No mod"):
        things.get("broken")
