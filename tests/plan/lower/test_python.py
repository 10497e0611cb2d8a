"""The emitted Python file says what the engine says, token for token."""

from __future__ import annotations

import ast

import pytest
import torch

import letters_folder
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.drafters import drafters
from slipstream.engines.drafter_catalogue import DrafterCatalogue, plan_of_flags
from slipstream.engines.native.engine import NativeEngine
from slipstream.plan.ir.check import check_plan
from slipstream.plan.lower.python import emit_python

ALLOWED = ("slipstream.core", "slipstream.models", "slipstream.drafters")
WARM, GREEDY = Sampling(temperature=0.9, seed=5), Sampling(temperature=0.0)
WITHOUT_DEFAULT = ("none", "retrieval", "prediction")  # they need an index, or a text that a request brings
PROMPT = "Write the words one two three four five, then write them again."
CASES = [
    *[
        ("draft_model", rule, 3, "2x2" if rule in ("chosen", "replace", "no_replace", "spectr") else None)
        for rule in rules.lossless()
    ],
    *[("draft_model", rule, 3, None) for rule in rules.names() if not rules.get(rule).lossless],
    ("draft_model", "bild(fallback=0.2)", 8, None),
    ("draft_model", None, None, None),
    ("ngram", None, None, None),
    ("ngram", "block", 4, None),
    ("overlapped", "block", 2, None),
    ("early_exit", "token", 2, None),
    ("none", None, None, None),
]


@pytest.fixture
def threads(drafter):
    """A drafter that overlaps with its target needs a thread of its own."""
    before = torch.get_num_threads()
    if drafter == "overlapped":
        torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(letters_folder.write(tmp_path_factory.mktemp("letters")))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("drafter", "rule", "depth", "shape"), CASES)
def test_the_emitted_cycle_equals_the_engine(folder, drafter, rule, depth, shape):
    options = {"layers": "0"} if drafter == "draft_model" else {"layer": 1} if drafter == "early_exit" else {}
    options = {"drafter": "ngram"} if drafter == "overlapped" else options
    plan = plan_of_flags(folder, drafter, options, verify=rule, depth=depth, shape=shape)
    source = emit_python(check_plan(plan, DrafterCatalogue()))
    module: dict[str, object] = {"__name__": "cycle"}
    exec(compile(source, "cycle.py", "exec"), module)
    with NativeEngine(plan=plan) as engine:
        for sampling in (GREEDY,) if rule == "greedy" else (GREEDY, WARM):
            row, text = module["generate"]("abcabcab", sampling, 24, raw=True)
            (sample,) = engine.generate("abcabcab", sampling, max_tokens=24, raw=True)
            assert row.output == sample.token_ids
            assert (text, row.finish_reason) == (sample.text, sample.finish_reason)
            if rule is not None and "bild" not in rule:  # a letter is rarely as certain as that
                assert sum(sample.stats.drafted), "nothing was drafted, so nothing was compared"


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("drafter", [name for name in drafters if name not in WITHOUT_DEFAULT])
def test_every_drafter_of_the_catalogue(drafter):
    plan = check_plan(plan_of_flags("smollm2-135m", drafter, {}, depth=3), DrafterCatalogue())
    module: dict[str, object] = {"__name__": "cycle"}
    exec(compile(emit_python(plan), "cycle.py", "exec"), module)
    with NativeEngine(plan=plan) as engine:
        for sampling in (GREEDY, WARM):
            row, _ = module["generate"](PROMPT, sampling, 24)
            (sample,) = engine.generate(PROMPT, sampling, max_tokens=24)
            assert row.output == sample.token_ids
            assert sum(sample.stats.drafted), "nothing was drafted, so nothing was compared"


@pytest.mark.parametrize("depth", [None, 3])
def test_imports(depth):
    """Core, models and drafters, and the policy if the depth is adaptive."""
    tree = ast.parse(emit_python(plan_of_flags("smollm2-135m", "ngram", {}, depth=depth)))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [module for module in modules if module.startswith("slipstream")]
    allowed = ALLOWED if depth else (*ALLOWED, "slipstream.plan")
    assert ours
    assert all(module.startswith(allowed) for module in ours)


def test_comments_cannot_end_the_docstring():
    from slipstream.plan.ir.parser import parse_plan

    plan = parse_plan('# a """ b \\ c\nplan x\n  t = model("m")\n  %s = score t\n  %v = verify block %s\n  commit %v\n')
    assert 'a """ b \\ c' in (ast.get_docstring(ast.parse(emit_python(plan))) or "")
