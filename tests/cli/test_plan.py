"""`slipstream plan`, and `--plan` of other commands."""

from __future__ import annotations

import json

import pytest
import torch

import letters_folder
from slipstream.bench.figures import FURTHER, measure_figures
from slipstream.bench.measure.variants import drafter_variants
from slipstream.engines.drafter_catalogue import DrafterCatalogue
from slipstream.engines.native.build import build_target
from slipstream.kernels.energy_counter import NoCounter
from slipstream.plan.ir.build import build_plan
from slipstream.plan.ir.json_form import from_json
from slipstream.plan.ir.library import library
from slipstream.plan.ir.parser import parse_plan
from slipstream.plan.ir.text import text_of
from slipstream.plan.lower.peers import lower_peer
from slipstream.plan.passes.context import PassContext
from slipstream.plan.passes.levels import LEVELS, run_passes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(letters_folder.write(tmp_path_factory.mktemp("letters")))


@pytest.fixture
def workload(tmp_path, monkeypatch):
    """Prompts that fit into the letters' short context."""
    path = tmp_path / "short.jsonl"
    path.write_text(json.dumps({"prompt": "abcabcab"}) + "\n")
    monkeypatch.setattr("slipstream.bench.figures.WORKLOAD", str(path))
    return str(path)


@pytest.fixture
def plan_file(folder, tmp_path):
    path = tmp_path / "letters.plan"
    path.write_text(
        f"""plan letters
  target = model("{folder}")
  lookup = ngram(longest=2)
  %d = draft lookup depth=3
  %s = score target %d
  %v = verify block %s
  commit %v
"""
    )
    return str(path)


def test_flags_show_their_plan(slipstream):
    report = slipstream(
        "plan", "show", "-d", "eagle", "--tree", "24", "-o", "model=smollm2-135m-eagle", "--json"
    ).report
    plan = from_json(report["plan"])
    assert parse_plan(report["text"]) == plan
    assert 'eagle("smollm2-135m-eagle")' in report["text"]
    assert "shape=24" in report["text"]
    assert "verify auto(seeded=coupled, else=no_replace)" in report["text"]


def test_full_leaves_no_default_hidden(slipstream):
    text = slipstream("plan", "show", "ngram", "--full").stdout
    assert "longest=3" in text
    assert "shortest=1" in text
    assert "version=1" in text
    assert "lossy=false" in text
    assert parse_plan(text).name == "ngram"


def _no_counter(device, watts):
    raise NoCounter("no counter here")


def test_least_energy_needs_a_counter_or_a_stated_power(slipstream, folder, workload, monkeypatch):
    words = "plan", "optimise", "-m", folder, "-d", "ngram", "--candidate", "ngram", "-Oe"
    with monkeypatch.context() as patch:
        patch.setattr("slipstream.bench.measure.energy.energy_source", _no_counter)
        refused = slipstream(*words)
    assert (refused.returncode, refused.stderr) == (
        2,
        "error: -O e needs joules per token: no counter here; --watts states a power for an estimate\n",
    )
    monkeypatch.setattr("slipstream.bench.figures.ENERGY_SECONDS", 0.01)
    report = slipstream(*words, "--watts", "10", "--json").report
    assert report["passes"][0]["pass"] == "select-energy"
    assert "per token (estimate at 10 W): plain: " in report["passes"][0]["reasons"][0]
    refused = slipstream(*words, "--watts", "10", "--latency", "0.000001")
    assert "error: nothing decodes within 1e-06 ms per token; the fastest takes " in refused.stderr
    assert "--latency is 0; it must be milliseconds" in slipstream(*words, "--watts", "9", "--latency", "0").stderr
    refused = slipstream("plan", "optimise", "-m", folder, "-O1", "--watts", "9")
    assert refused.stderr == "error: --watts is for energy; add -O e, or leave it out\n"


def test_options_of_another_engine_may_stand_beside_a_plan(slipstream, plan_file):
    words = "generate", "abc", "--plan", plan_file, "-o", "python=/nowhere/python"
    assert "a plan and -o are both given" in slipstream(*words).stderr
    assert "cannot run the interpreter /nowhere/python" in slipstream(*words, "--engine", "vllm").stderr


def test_list_and_diff(slipstream):
    assert list(slipstream("plan", "list", "--json").report["plans"]) == list(library())
    done = slipstream("plan", "diff", "ngram", "eagle")
    assert done.returncode == 1
    assert "- lookup = ngram(longest=3)" in done.stdout
    assert slipstream("plan", "diff", "ngram", "ngram", "--json").report == {"equal": True, "differences": []}


def test_generate_with_a_plan_equals_its_flags(slipstream, folder, plan_file):
    words = "generate", "abcabc", "--max-tokens", "12", "--raw", "--json"
    planned = slipstream(*words, "--plan", plan_file).report
    flagged = slipstream(
        *words, "-m", folder, "-d", "ngram", "-o", "longest=2", "--depth", "3", "--verify", "block"
    ).report
    assert planned["token_ids"] == flagged["token_ids"]
    assert planned["drafted"] == flagged["drafted"] > 0


@pytest.mark.parametrize(
    "flag", [["-d", "ngram"], ["--depth", "2"], ["--tree", "4"], ["--verify", "block"], ["-m", "x"]]
)
def test_a_plan_says_all_of_it(slipstream, plan_file, flag):
    done = slipstream("generate", "abc", "--plan", plan_file, *flag)
    assert done.returncode == 2
    assert f"a plan and {flag[0]} are both given" in done.stderr


def test_a_prompt_in_place_of_a_plan_is_named_before_the_flags_beside_it(slipstream):
    done = slipstream("plan", "levels", "Write a poem.", "-d", "ngram")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no plan 'Write a poem.'; a plan is a file or one of ")


def test_bad_plans_are_one_sentence(slipstream, tmp_path):
    path = tmp_path / "bad.plan"
    path.write_text("plan x\n  %d = drft h\n")
    done = slipstream("plan", "show", str(path))
    assert done.returncode == 2
    assert f"{path}:2:8: there is no operation 'drft'" in done.stderr
    assert slipstream("plan", "lower", "ngram", "--emit", "cobol").returncode == 2
    assert slipstream("plan", "optimise", "ngram", "-O", "9").returncode == 2


def test_a_pass_to_show_must_be_one_that_runs(slipstream):
    done = slipstream("plan", "optimise", "-O1", "-d", "ngram", "--print-after", "guards")
    assert done.returncode == 2
    assert "the pass guards does not run here; those that run are fix-chain, place" in done.stderr
    done = slipstream("plan", "optimise", "-O1", "-d", "ngram", "--print-after", "place")
    assert done.returncode == 0
    assert "# after place" in done.stderr


def test_audit_and_bench_take_a_plan(slipstream, plan_file, workload):
    audit = slipstream("audit", "--plan", plan_file, "--samples", "200", "--json")
    assert audit.report["passed"]
    words = "--workload", workload, "--repeats", "1", "--max-tokens", "4", "--json"
    results = slipstream("bench", "--plan", plan_file, *words).report
    assert [cell["drafter"] for cell in results["records"]] == ["none", "plan letters"]


def test_optimise_explain_and_levels(slipstream, folder, workload, monkeypatch):
    def quick(target, drafters, on_step=None, always=(), kept=None):
        return measure_figures(target, drafters, (2,), 4, 1, on_step, always, kept)

    monkeypatch.setattr("slipstream.cli.plan.optimise.measure_figures", quick)
    given = "-m", folder, "--candidate", "ngram", "--json"
    report = slipstream("plan", "optimise", *given, "-O2").report
    assert [step["pass"] for step in report["passes"]] == list(LEVELS["2"])
    assert "device=cpu" in report["text"]
    reasons = slipstream("plan", "explain", *given).report["passes"][0]["reasons"]
    assert reasons[0].startswith("ngram depth 2: ")
    explained = slipstream("plan", "explain", *given, "-d", "ngram", "--pass", "overlap").report
    assert (explained["level"], [step["pass"] for step in explained["passes"]]) == (None, ["overlap"])
    rows = slipstream("plan", "levels", *given, "--prompt", "abcabc", "--max-tokens", "6").report["levels"]
    assert [row["level"] for row in rows] == ["O0", "O1", "O2", "O3"]
    assert all(row["same_text"] for row in rows)


def test_forecast(slipstream, folder, workload, monkeypatch):
    monkeypatch.setattr("slipstream.cli.plan.forecast.WORKLOAD", workload)
    words = "plan", "forecast", "-m", folder, "-d", "ngram", "--depth", "1,3", "--json"
    points = slipstream(*words).report["points"]
    assert [point["depth"] for point in points] == [1, 3]
    for point in points:
        assert point["tau"] >= 1
        low, high = point["speedup_interval"]
        assert 0 < low <= point["speedup"] <= high
    report = slipstream(*words, "--workload", workload).report
    assert (report["workload"], len(report["points"])) == (workload, 2)
    chip = "plan", "forecast", "--bandwidth", "3TB/s", "--flops", "900T"
    refused = slipstream(*chip, "--weights", "16GB", "--workload", workload)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--workload is decoded on this machine" in refused.stderr
    report = slipstream(*chip, "--weights", "16GB", "--depth", "2", "--batch", "1,8", "--json").report
    assert [(point["batch"], point["depth"]) for point in report["points"]] == [(1, 2), (8, 2)]
    assert report["assumptions"]
    assert "--weights is missing" in slipstream(*chip).stderr
    assert slipstream("plan", "forecast", "-d", "none").returncode == 2


def test_measured_figures(folder, workload):
    figures = measure_figures(build_target(folder), {"ngram": {}}, (1, 2), 4, 1)
    assert [point.depth for point in figures.drafters["ngram"] if not point.nodes] == [1, 2]
    assert figures.plain > 0
    assert all(point.tokens_per_second > 0 and point.tau >= 1 for point in figures.drafters["ngram"])
    assert json.dumps(figures.shown("ngram"))


def test_variants_of_the_drafter_that_a_plan_keeps(folder, workload, monkeypatch):
    """The plan's own drafter is measured with overlap, though another one or plain decoding may be faster."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    candidates = {"ngram": {}, "lookahead": {}}
    figures = measure_figures(build_target(folder), candidates, (1,), 4, 1, always=("ngram",), kept="ngram")
    overlap = figures.variants["overlap"]["ngram"]
    assert overlap.point.tokens_per_second > 0
    (step,) = run_passes(build_plan("m", "ngram", depth=1), ["overlap"], PassContext(figures), DrafterCatalogue())
    assert step.reasons[0].startswith("ngram with overlap: ")
    figures = measure_figures(build_target(folder), candidates, (1,), 4, 1, always=("lookahead",), kept="lookahead")
    assert "drafts from what the target has computed" in figures.variants["overlap"]["lookahead"].reason
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert "share one device and one thread" in drafter_variants("ngram", {}, build_target(folder))["overlap"].reason


def test_of_many_drafters_the_best_are_measured_further(folder, workload):
    candidates = {"ngram": {}, "lookahead": {}, "suffix": {}, "layer_skip": {}}
    figures = measure_figures(build_target(folder), candidates, (1, 2), 4, 1)
    assert len(figures.drafters) == FURTHER
    kept = measure_figures(build_target(folder), candidates, (1, 2), 4, 1, always=tuple(candidates))
    assert kept.drafters.keys() == candidates.keys()
    assert all({point.depth for point in points if not point.nodes} == {1, 2} for points in figures.drafters.values())


def test_a_plan_for_several_devices_reaches_vllm(slipstream, tmp_path, monkeypatch):
    opened = {}

    def open_engine(name, model, options=None, plan=None, **loading):
        opened["settings"] = lower_peer(plan, name, ("none", "ngram"), ("block",))
        raise ValueError("far enough")

    monkeypatch.setattr("slipstream.cli.generate.session.open_engine", open_engine)
    path = tmp_path / "two.plan"
    path.write_text(text_of(build_plan("smollm2-135m", "ngram", depth=4, tensor_parallel=2)))
    assert "far enough" in slipstream("generate", "abc", "--plan", str(path), "-e", "vllm").stderr
    assert opened["settings"].options == {"tensor_parallel": 2}
