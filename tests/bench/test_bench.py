"""A whole benchmark on a tiny model: run, killed, taken up, compared, reported, on a bare machine too."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html import escape

import pytest

import default
import letters
from slipstream.bench import engine_pool, session
from slipstream.bench import run as running
from slipstream.bench.__main__ import main
from slipstream.bench.engine_pool import EnginePool, EngineSettings
from slipstream.bench.matrix import Matrix, Setup
from slipstream.bench.measure.measurement import Load, measure
from slipstream.bench.measure.roofline import Machine
from slipstream.bench.report.page import html
from slipstream.bench.session import BenchOptions, bench
from slipstream.bench.table import busy, show
from slipstream.bench.workloads import Item
from slipstream.engines import extras
from slipstream.engines.base import Speculation
from slipstream.engines.native.engine import NativeEngine

AXES = {"engine", "drafter", "depth", "rule", "batch", "temperature", "workload"}


@pytest.fixture(scope="module", autouse=True)
def _quick():
    """What the machine can do is measured in another test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "probe_machine", lambda dtype, device: Machine(1e9, 1e11))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """The model of sixteen letters as a user's own model lies on the disk."""
    place = tmp_path_factory.mktemp("letters")
    letters.plain().save_pretrained(place)
    letters.tokenizer().save_pretrained(place)
    return str(place)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("prompts") / "abc.jsonl"
    lines = [{"prompt": "abcabcabc", "reference": "abc"}, {"prompt": "ponmponm"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


@pytest.fixture
def options(folder, prompts, tmp_path) -> BenchOptions:
    matrix = Matrix(drafters=("ngram",), depth="2", temperature="0,0.8", verify="block,coupled")
    return BenchOptions(folder, matrix, prompts, 4, 2, tmp_path / "out", command=["bench"])


@pytest.fixture(scope="module")
def whole(folder, prompts, tmp_path_factory):
    """One finished run for all who only look at it."""
    out = tmp_path_factory.mktemp("whole")
    matrix = Matrix(drafters=("ngram", "native:draft_model"), depth="1,3", batch="1,2")
    return bench(BenchOptions(folder, matrix, prompts, 6, 2, out, command=["bench", "--x"])), out


def test_records_are_whole_and_honest(whole):
    results, out = whole
    assert len(results["records"]) == 2 * 5
    for record in results["records"]:
        assert record.keys() >= AXES | {"tokens_per_second", "tau", "ratio_to_plain", "verdict"}
        assert record["same_answers"] == 1.0  # float32 and a tiny model: no ties
        assert record["tokens_per_second"] > 0
        assert record["seconds_to_first_token"] > 0
        assert (record["drafter"] == "draft_model") == (record["draft_tokens_per_second"] is not None)
        if record["drafter"] == "draft_model":  # the target drafts for itself
            assert record["acceptance"] == [1.0] * record["depth"]
            assert record["tau"] > 1.5
    assert json.loads((out / "results.json").read_text())["records"][0].keys() == results["records"][0].keys()
    for field in ("date", "command", "commit", "hardware", "versions", "model", "sha256", "engines", "limits"):
        assert field in results
    assert len(results["sha256"]) == 64


def test_a_killed_run_goes_on_where_it_stopped(options, monkeypatch):
    done = []

    def dying(*given):
        if len(done) == 7:
            raise KeyboardInterrupt
        done.append(given)
        return measure(*given)

    monkeypatch.setattr(session, "html", lambda results: "")  # drawn in another test
    monkeypatch.setattr(running, "measure", dying)
    with pytest.raises(KeyboardInterrupt):
        bench(options)
    assert not (options.out / "results.json").exists()
    first = len(done)
    monkeypatch.setattr(running, "measure", lambda *given: done.append(given) or measure(*given))
    results = bench(options)
    cells = 2 + 3  # greedy is one rule
    assert first == 7
    assert len(done) == 2 * cells
    assert len(results["records"]) == cells
    again = bench(replace(options, against=options.out / "results.json"))
    assert len(done) == 2 * cells  # nothing was measured a second time
    assert len(again["against"]["records"]) == cells
    assert again["records"] == results["records"]
    bench(replace(options, max_tokens=5, repeats=1))
    assert len(done) == 3 * cells  # other answers are other measurements


def test_a_report_holds_everything_itself(whole):
    results, out = whole
    page = (out / "report.html").read_text()
    assert not re.findall(r"""(?:src|href)=""", page)
    assert "url(" not in page
    assert "<script" not in page
    for word in ("bench --x", results["sha256"], "draft alone/s", "of limit", results["takeaway"]):
        assert escape(str(word)) in page


def test_a_scaled_target_is_named_everywhere(whole, capsys):
    results = whole[0] | {"scaled": "8 times as wide"}
    show(results)
    assert "COST-SCALED TARGET: 8 times as wide" in capsys.readouterr().out
    assert "Cost-scaled target: 8 times as wide" in html(results)


def test_a_busy_machine_is_told(whole):
    results = whole[0]
    assert "wanted its 2 cores" in busy(results | {"load_average": 9.0, "hardware": {"cores": 2}})
    assert busy(results | {"load_average": 1.0}) is None
    assert busy(results | {"load_average": None}) is None


def test_conversations_go_on(folder):
    turns = Item(("abc", "hh", "ab"), "talk", system="p")
    with NativeEngine(letters.target(), "none") as engine:
        found = measure(engine, [turns, Item(("abc",), "one")], Load(2, 0.0, 4))
        talk = [{"role": "system", "content": "p"}]
        for turn in turns.turns:
            talk.append({"role": "user", "content": turn})
            (done,) = engine.generate(talk, Load(1, 0.0, 4).sampling, max_tokens=4)
            talk.append({"role": "assistant", "content": done.text})
    assert found.answers[0] == done.text
    assert len(found.first) == 4  # three turns and one
    assert found.tokens <= 16


def test_counts_of_a_group():
    items = [Item(("abc",), "one"), Item(("hh",), "two")]
    with NativeEngine(letters.target(), "none") as engine:
        found = measure(engine, items, Load(2, 0.0, 8, Speculation(off=True)))
    assert 0 < found.decoding < found.seconds
    assert 0 < found.decoded < found.tokens
    assert found.passes <= 9  # rows share them
    assert found.tally.cycles == found.tokens
    assert len(found.answers) == len(found.prints) == 2


def test_sampled_requests_have_no_seed():
    """A seed would fix the depth of requests under the rule block."""
    assert Load(1, 0.8, 4).sampling.seed is None
    assert Load(4, 0.8, 4).sampling.temperature == 0.8


def test_one_target_and_one_engine_for_all_depths(folder):
    pool = EnginePool(EngineSettings(folder), Matrix())
    try:
        two, four = (pool.open(Setup("native", "ngram", depth, None)) for depth in (2, 4))
        plain = pool.open(Setup("native", "none", 0, None))
        assert two is four
        assert plain.target is two.target
        assert pool.speculation(Setup("native", "ngram", 4, None)).depth == 4
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-d", "nonsense"], "native cannot draft with nonsense; it takes"),
        (["--engine", "nonsense"], "no engine called"),
        (["--engine", "transformers", "--verify", "coupled"], "no rule coupled"),
        (["-m", "nonsense"], "no model called"),
        (["--workload", "nonsense"], "no workload"),
        (["--repeats", "0"], "repeats is 0"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["-o", "nonsense"], "key=value"),
        (["-o", "vllm.x=1"], "not measured"),
        (["--against", "nonsense.json"], "cannot read nonsense.json"),
        (["--out", "/proc/nothing"], "cannot write"),
        (["--dtype", "int3"], "dtype is"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence(folder, capsys, words, says):
    given = words if "-m" in words else ["-m", folder, *words]
    assert main(given) == 2
    errors = capsys.readouterr().err.strip()
    assert says in errors.splitlines()[-1]
    assert sum(line.startswith("error:") for line in errors.splitlines()) == 1


def test_an_engine_that_is_not_installed(folder, capsys, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert main(["-m", folder, "--engine", "native", "--engine", "vllm"]) == 2
    assert "the engine vllm needs the package" in capsys.readouterr().err


def test_two_engines_side_by_side(folder, prompts, tmp_path):
    matrix = Matrix(("transformers", "native"), ("transformers:ngram",), batch="2")
    results = bench(BenchOptions(folder, matrix, prompts, 4, 1, tmp_path, command=["bench"]))
    titles = [(r["engine"], r["drafter"]) for r in results["records"]]
    assert titles == [("transformers", "none"), ("native", "none"), ("transformers", "ngram")]
    theirs, ours, _ = results["records"]
    assert theirs["ratio_to_reference"] is None
    assert ours["ratio_to_reference"] == pytest.approx(ours["tokens_per_second"] / theirs["tokens_per_second"])
    assert ours["ratio_to_reference_interval"] is None
    assert set(results["engines"]) == {"transformers", "native"}
    assert "to reference" in (tmp_path / "report.html").read_text()


def test_a_bare_machine(folder, prompts, tmp_path):
    """Torch, transformers and numpy alone: no typer, rich or matplotlib."""
    words = ["-m", folder, "--workload", f"{prompts}:2", "--max-tokens", "6", "--repeats", "1", "--json"]
    missing = "typer", "rich", "matplotlib", "jaxtyping", "gguf", "fastapi"
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({missing}))\n"
        "from slipstream.bench.__main__ import main\n"
        f"sys.exit(main({[*words, '--out', str(tmp_path)]!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(json.loads(lines[-1])["records"]) == 2
    assert any(line.startswith("native  ngram") for line in lines)
    assert (tmp_path / "report.html").stat().st_size > 5000
    assert any("one repeat: no interval" in line or "nothing was drafted" in line for line in lines)
    assert "2/2" in done.stderr  # progress as lines


@pytest.mark.model
def test_the_default_model(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engine_pool, "build_target", default.build)
    words = ["-d", "ngram", "--workload", "maths:1", "--max-tokens", "8", "--repeats", "1", "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    results = json.loads(capsys.readouterr().out.splitlines()[-1])
    plain, fast = results["records"]
    assert "Q4_1" in plain["model"]
    assert plain["tau"] == 1.0
    assert fast["same_answers"] == 1.0
    assert plain["share_of_limit"] > 0
    assert results["limits"]["parameters"] > 100_000_000
