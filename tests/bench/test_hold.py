"""Engines that are not all open at once: who makes room for whom, in which order cells come, what is said when memory
runs out."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest

import fake_vllm
import letters_folder
from slipstream.bench import engine_pool, session
from slipstream.bench import run as running
from slipstream.bench.__main__ import main
from slipstream.bench.engine_pool import EnginePool, EngineSettings
from slipstream.bench.matrix import Matrix, Setup
from slipstream.bench.measure.measurement import warm
from slipstream.bench.measure.memory import is_out_of_memory, release_memory, resident
from slipstream.bench.measure.roofline import Machine
from slipstream.bench.run import BenchSchedule
from slipstream.bench.session import BenchOptions, bench
from slipstream.engines import open_engine

NATIVE, NGRAM = Setup("native", "none", 0, None), Setup("native", "ngram", None, None)
THEIRS = Setup("transformers", "none", 0, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(letters_folder.write(tmp_path_factory.mktemp("letters")))


@pytest.fixture(scope="module")
def draft(tmp_path_factory) -> str:
    return str(letters_folder.write(tmp_path_factory.mktemp("draft"), noise=0.02))


@pytest.fixture
def opened(monkeypatch, tmp_path) -> list[tuple[str, str, int]]:
    """Engine, drafter and how many were open then, whenever one is opened; and nothing slow around it."""
    seen, alive = list[tuple[str, str, int]](), list[weakref.ref]()

    def watched(name, model, drafter="none", *rest, **more):
        seen.append((name, drafter, sum(ref() is not None for ref in alive)))
        made = open_engine(name, model, drafter, *rest, **more)
        alive.append(weakref.ref(made))
        return made

    monkeypatch.setattr(engine_pool, "open_engine", watched)
    monkeypatch.setattr(engine_pool, "release_memory", gc.collect)
    monkeypatch.setattr(session, "probe_machine", lambda dtype, device: Machine(1e9, 1e11))
    monkeypatch.setattr(session, "html", lambda results: "")
    (tmp_path / "abc.jsonl").write_text('{"prompt": "abcabc"}\n')
    (tmp_path / "pon.jsonl").write_text('{"prompt": "ponpon"}\n')
    return seen


def order(hold: int | None, **matrix: str) -> list[tuple[int, str, str, str]]:
    options = Matrix(("native", "transformers"), ("ngram",), **matrix)
    cells = options.cells(["code", "chat"])
    found = list(BenchSchedule(cells, {}, 2, 4, {}, hold).order())
    assert sorted(map(repr, found)) == sorted(repr((n, cell)) for cell in cells for n in range(2))
    return [(n, cell.setup.engine, cell.setup.drafter, cell.workload) for n, cell in found]


def test_one_engine_after_the_other_in_every_repeat():
    visits = [(n, engine, drafter) for n, engine, drafter, _ in order(1)]
    ways = [("native", "none"), ("native", "ngram"), ("transformers", "none"), ("transformers", "ngram")]
    first, second = (list(dict.fromkeys(visit[1:] for visit in visits if visit[0] == n)) for n in range(2))
    assert first == ways
    assert second == ways[::-1]  # none always comes first, and those of one name stay side by side
    assert visits == [(n, *way) for n, way_of in enumerate((first, second)) for way in way_of for _ in range(2)]


def test_those_that_are_open_together_take_turns():
    assert [cell[1:] for cell in order(2)[:4]] == [
        ("native", "none", "code"), ("native", "ngram", "code"),
        ("native", "none", "chat"), ("native", "ngram", "chat"),
    ]  # fmt: skip
    assert order(4) == order(9) == order(None)
    assert order(None) != order(2)


def test_all_depths_of_one_engine_stay_together():
    """One engine serves them, so they take turns load by load, and it opens once."""
    drafters = [drafter for n, engine, drafter, _ in order(1, depth="1,3") if n == 0 and engine == "native"]
    assert drafters == ["none"] * 2 + ["ngram"] * 4


def test_the_least_recently_used_makes_room(folder, opened):
    ships = EnginePool(EngineSettings(folder), Matrix(), hold=2)
    try:
        plain, theirs = (weakref.ref(ships.open(setup)) for setup in (NATIVE, THEIRS))
        assert ships.open(NATIVE) is plain()
        ships.open(NGRAM)
        assert plain() is not None
        assert theirs() is None
    finally:
        ships.close()


def test_the_native_target_is_shared_and_let_go(folder, opened, monkeypatch):
    released = []  # engines that were opened before each release
    monkeypatch.setattr(engine_pool, "release_memory", lambda: released.append(len(opened)) or gc.collect())
    ships = EnginePool(EngineSettings(folder), Matrix(), hold=1)
    try:
        target = weakref.ref(ships.open(NATIVE).target)
        assert ships.open(NGRAM).target is target()
        ships.open(THEIRS)
        assert target() is None
        assert [count for *_, count in opened] == [0, 0, 0]  # whoever made room was gone before the next was loaded
        assert released == [0, 1, 2]
    finally:
        ships.close()


def test_a_run_that_holds_one(folder, draft, opened, tmp_path, monkeypatch):
    warmed = []
    monkeypatch.setattr(running, "warm", lambda *given: warmed.append(given[2]) or warm(*given))
    matrix = Matrix(("native", "transformers"), (draft,))
    load = f"{tmp_path}/abc.jsonl,{tmp_path}/pon.jsonl", 4, 2
    results = bench(BenchOptions(folder, matrix, *load, tmp_path / "one", command=["bench"], hold=1))
    assert all(count == 0 for *_, count in opened)
    ways = [("native", "none"), ("native", draft), ("transformers", "none"), ("transformers", draft)]
    alone = [("transformers", "none")]  # the draft model by itself, before the engine it drafts in
    assert [seen[:2] for seen in opened] == [*ways[:3], *alone, *ways[3:], *ways[2::-1]]
    assert len(warmed) == 2 * len(ways) - 1  # an engine opened anew is cold; the last one is the next repeat's first
    assert len(results["records"]) == 2 * len(ways)
    assert results["settings"]["hold"] == 1
    assert {r["engine"] for r in results["records"] if r["draft_tokens_per_second"]} == {"native", "transformers"}
    together = bench(BenchOptions(folder, matrix, *load, tmp_path / "all", command=["bench"]))
    what = "engine", "drafter", "workload", "same_answers"  # how far is drafted is decided by the clock
    assert [[r[key] for key in what] for r in results["records"]] == [
        [r[key] for key in what] for r in together["records"]
    ]


def test_a_draft_model_alone_runs_with_the_options_of_its_engine(folder, draft, opened, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(fake_vllm.write(tmp_path)))
    matrix = Matrix(("vllm",), (draft,), options={"vllm.python": sys.executable})
    results = bench(BenchOptions(folder, matrix, f"{tmp_path}/abc.jsonl", 6, 1, tmp_path / "out", hold=1))
    assert [seen[:2] for seen in opened] == [("vllm", "none"), ("vllm", "none"), ("vllm", draft)]
    assert results["records"][1]["draft_tokens_per_second"] > 0


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 9 GB.\nat"
        ),
        ValueError("vllm cannot run it: its process was killed, as happens where a system runs out of memory"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(("words", "helps"), [([], "--hold 1, which keeps one"), (["--hold", "1"], "a smaller model")])
def test_no_memory_left_is_one_sentence(folder, opened, tmp_path, capsys, monkeypatch, error, words, helps):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(engine_pool, "open_engine", full)
    assert main(["-m", folder, "--workload", f"{tmp_path}/abc.jsonl", *words]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: there is not memory enough for native plain (")
    assert helps in said


def test_other_errors_are_left_alone():
    for words in ("no model called memory", "the engine is closed", "index out of range"):
        assert not is_out_of_memory(ValueError(words))
    with pytest.raises(KeyError), EnginePool(EngineSettings("none"), Matrix()).explain_memory_errors(NATIVE):
        raise KeyError("own")


def test_hold_must_be_a_number_from_one_on(folder, capsys):
    assert main(["-m", folder, "--hold", "0"]) == 2
    assert "hold is 0; it must be 1 or more" in capsys.readouterr().err


@pytest.mark.skipif(resident("VmRSS") is None, reason="nothing tells how much memory is in use here")
def test_freed_memory_is_given_back():
    import torch

    release_memory()  # what tests before this one freed would be used again
    before = resident("VmRSS")
    held = [torch.ones(1 << 20) for _ in range(100)]  # 400 MB, in pieces that an allocator keeps
    assert resident("VmRSS") > before + 3e8
    held.clear()
    gc.collect()
    release_memory()
    assert resident("VmRSS") < before + 1e8
