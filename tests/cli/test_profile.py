"""`slipstream profile` and what reads it, as a user runs them, on a tiny model."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

import letters
from slipstream.bench.profile import energy as profile_energy
from slipstream.bench.profile import measure
from slipstream.engines.native.engine import NativeEngine
from slipstream.kernels import energy_sources
from slipstream.plan.profile import store
from slipstream.plan.profile.store import read_profile


@pytest.fixture
def folder(tmp_path, monkeypatch) -> str:
    monkeypatch.setattr(store, "profiles_home", lambda: tmp_path / "profiles")
    letters.plain().save_pretrained(tmp_path / "letters")
    letters.tokenizer().save_pretrained(tmp_path / "letters")
    for name, prompt in {"one": "abcabc", "two": "aabbaabb"}.items():
        (tmp_path / f"{name}.jsonl").write_text(f'{{"prompt": "{prompt}"}}\n')
    return str(tmp_path / "letters")


@pytest.fixture
def words(folder, tmp_path) -> list[str]:
    spec = ",".join(str(tmp_path / f"{name}.jsonl") for name in ("one", "two"))
    return ["-m", folder, "--workload", spec, "--depth", "1,3", "--batch", "1,2", "--max-tokens", "8"]


def test_a_profile_holds_costs_and_acceptance(words, slipstream):
    done = slipstream("profile", *words, "-d", "ngram", "--json")
    saved = done.report["profile"]
    assert saved["key"]["model"].endswith("letters")
    assert {(point["rows"], point["tokens"]) for point in saved["target"]} >= {(1, 1), (2, 2)}
    assert all(point["seconds"] > 0 and point["context"] >= 1 for point in saved["target"])
    assert saved["drafters"]["ngram"]
    assert saved["host_seconds_per_cycle"] >= 0
    assert {run["drafter"] for run in saved["runs"]} == {"none", "ngram"}
    assert {run["workload"] for run in saved["runs"]} == {"one", "two"}
    assert all(0 <= count["accepted"] <= count["tried"] for count in saved["acceptance"])
    assert saved["policy"]["ngram"]["costs"]["plain"]
    assert saved["drafter_sha256"] == {"ngram": None}
    assert done.report["path"] == str(next(store.profiles_home().glob("letters-*.json")))
    assert not list(store.profiles_home().glob(".*"))  # the journal is gone


def test_an_interrupted_profile_goes_on(words, slipstream, monkeypatch):
    recorded, calls = measure._recorded, []

    def breaks(*arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return recorded(*arguments)

    monkeypatch.setattr(measure, "_recorded", breaks)
    assert slipstream("profile", *words, "-d", "ngram").returncode == 130
    assert slipstream("profile", *words, "-d", "ngram", "--json").report["profile"]["runs"]
    settings = measure.ProfileSettings({"ngram": {}}, (1, 3), (1, 2), workload=words[3])
    everything = len(measure.specs(settings, measure.load_workloads(words[3])))
    assert len(calls) == everything + 1  # the one that broke was measured again


def test_profiles_of_other_drafters_stay_and_profiles_merge(words, slipstream, tmp_path):
    first = slipstream("profile", *words, "-d", "ngram", "--json").report
    again = slipstream("profile", *words, "-d", "suffix", "--json").report
    assert set(again["profile"]["policy"]) == {"ngram", "suffix"}
    apart = tmp_path / "apart.json"
    merged = slipstream(
        "profile", *words, "-d", "suffix", "--out", str(apart), "--merge", first["path"], "--json"
    ).report
    assert set(merged["profile"]["policy"]) == {"ngram", "suffix"}
    assert read_profile(apart).drafters == ["ngram", "suffix"]


def test_forecasts_from_a_profile(words, slipstream, tmp_path, folder):
    path, picture = str(tmp_path / "p.json"), tmp_path / "curves.svg"
    slipstream("profile", *words, "-d", "ngram", "--out", path)
    flags = ["--depth", "1,2,3", "--batch", "1,2", "--profile", path, "--picture", str(picture), "--json"]
    done = slipstream("plan", "forecast", "-m", folder, "-d", "ngram", *flags)
    assert [(point["batch"], point["depth"]) for point in done.report["points"]] == [
        (b, d) for b in (1, 2) for d in (1, 2, 3)
    ]
    for point in done.report["points"]:
        for figure in ("tau", "speedup", "tokens_per_second"):
            low, high = point[f"{figure}_interval"]
            assert low <= point[figure] <= high
        assert point["joules_per_token"] is None
    assert "no joules per token" in done.stdout
    assert xml.parse(picture).getroot().tag.endswith("svg")
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"prompt": "abababab"}) + "\n")
    sampled = slipstream("plan", "forecast", "-m", folder, "-d", "ngram", *flags, "--workload", str(own)).report
    assert sampled["workload"] == str(own)
    taus, before = ([point["tau"] for point in each["points"]] for each in (sampled, done.report))
    assert taus != before  # acceptance is that of the user's prompts
    missing = slipstream("plan", "forecast", "-m", folder, "-d", "ngram", "--profile", path, "--workload", "cod")
    assert missing.returncode == 2
    assert "there is no workload 'cod'" in missing.stderr
    other = slipstream("plan", "forecast", "-m", folder, "-d", "suffix", "--profile", path)
    assert (other.returncode, other.stderr.strip()) == (
        2, "error: there are no runs of suffix beside plain decoding; the profile has drafters: ngram",
    )  # fmt: skip


def test_energy_of_a_profile_is_absent_with_a_reason_or_an_estimate(words, slipstream, tmp_path, folder, monkeypatch):
    monkeypatch.setattr(energy_sources, "POWERCAP", tmp_path)
    monkeypatch.setattr(profile_energy, "SECONDS", 0.05)
    monkeypatch.setattr(profile_energy.measure_energy, "__defaults__", (lambda what: None, 0.05))
    done = slipstream("profile", *words, "-d", "ngram", "--json")
    assert done.report["profile"]["energy"]["powers"] == []
    assert "no joules per token: no energy counter of the processor (RAPL)" in done.stdout
    path = str(tmp_path / "p.json")
    saved = slipstream("profile", *words, "-d", "ngram", "--watts", "50", "--out", path, "--json").report["profile"]
    (phases,) = saved["energy"]["phases"]
    assert (phases["source"], phases["estimate"]) == ("estimate at 50 W", True)
    assert phases["joules_per_token"] == pytest.approx(50 / phases["tokens_per_second"], rel=1e-3)
    assert sum(phases["phases"].values()) == pytest.approx(phases["kept"] + phases["wasted"])
    assert sum(phases["phases"].values()) / phases["joules_per_token"] - 1 == pytest.approx(phases["closure_error"])
    forecast = ["plan", "forecast", "-m", folder, "-d", "ngram", "--depth", "1,2", "--profile", path, "--json"]
    for flags, watts in (((), 50), (("--watts", "80"), 80)):
        report = slipstream(*forecast, *flags).report
        assert report["energy"] == f"joules per token: estimate at {watts} W"
        for point in report["points"]:
            assert point["joules_per_token"] == pytest.approx(watts / point["tokens_per_second"], rel=1e-3)
            low, high = point["joules_per_token_interval"]
            assert low <= point["joules_per_token"] <= high
    for verb in (["profile", *words, "-d", "ngram"], forecast):
        refused = slipstream(*verb, "--watts", "-1")
        said = "error: watts is -1; it must be a power above 0, such as 65"
        assert (refused.returncode, refused.stderr.strip()) == (2, said)


def test_an_engine_starts_with_the_profile_and_learns(words, slipstream, folder):
    path = slipstream("profile", *words, "-d", "ngram", "--json").report["path"]
    with NativeEngine(folder, "ngram") as engine:
        assert engine._policy.costs.sure(1)
        assert engine.drafting_cost is not None
        assert engine.drafting_cost.measured
    with NativeEngine(folder, "ngram", profile="none") as engine:
        assert not engine._policy.costs.seen(1)
    before = json.loads(Path(path).read_text())["policy"]["ngram"]
    done = slipstream("generate", "abcabcabcabc", "-m", folder, "-d", "ngram", "--max-tokens", "60", "--learn")
    assert done.returncode == 0, done.stderr
    after = json.loads(Path(path).read_text())["policy"]["ngram"]
    assert after != before
    assert 0 <= after["rate"] <= 1


def spoilt(path, **key):
    saved = json.loads(Path(path).read_text())
    saved["key"].update(key)
    Path(path).write_text(json.dumps(saved))


@pytest.mark.parametrize(("spoil", "sentence"), [
    (lambda p: spoilt(p, machine="a toaster"), "is foreign: it is of another machine (a toaster; here"),
    (lambda p: spoilt(p, sha256="0" * 64), "is foreign: it is of another model (000000000000; here"),
    (lambda p: spoilt(p, torch="1.0"), "is stale: it is of another version of torch (1.0; here"),
    (lambda p: p.write_text(p.read_text()[:300]), "is not a complete profile of this version; make one"),
    (lambda p: p.write_text("[]"), "is not a complete profile of this version; make one"),
    (lambda p: p.unlink(), "cannot read the profile"),
])  # fmt: skip
def test_a_profile_that_cannot_be_used_is_one_sentence(words, slipstream, tmp_path, folder, spoil, sentence):
    path = tmp_path / "p.json"
    slipstream("profile", *words, "-d", "ngram", "--out", str(path), "--temperature", "0", "--batch", "1")
    spoil(path)
    for done in (
        slipstream("plan", "forecast", "-m", folder, "-d", "ngram", "--profile", str(path)),
        slipstream("generate", "abc", "-m", folder, "-d", "ngram", "--profile", str(path)),
    ):
        assert done.returncode == 2
        assert sentence in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(("flags", "sentence"), [
    (["-d", "none"], "a profile needs a drafter; plain decoding is always measured"),
    (["-d", "ngram", "--depth", "0"], "depth holds '0'; write numbers from 1 on, as 1,4 or 2-5"),
    (["-d", "ngram", "--max-tokens", "1"], "max_tokens is 1; it must be 2 or more"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(words, slipstream, flags, sentence):
    done = slipstream("profile", *words, *flags)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == f"error: {sentence}"


def test_a_damaged_profile_in_the_cache_does_not_stop_an_engine(words, slipstream, folder, capfd):
    path = slipstream("profile", *words, "-d", "ngram", "--temperature", "0", "--batch", "1", "--json").report["path"]
    Path(path).write_text("{")
    with NativeEngine(folder, "ngram") as engine:
        assert not engine._policy.costs.seen(1)
    assert "it is not used" in capfd.readouterr().err


def test_other_engines_have_no_profile(slipstream):
    done = slipstream("generate", "abc", "-e", "transformers", "--learn")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: --profile and --learn need the native engine; transformers has no policy"
