"""Estimates, journal, limits, comparison, tables: what is made of measurements."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import letters
from slipstream.bench.against import compare, read_results
from slipstream.bench.journal import Journal, write_whole
from slipstream.bench.matrix import Cell, Setup
from slipstream.bench.measure.measurement import Measurement, StreamTimer, add_times, groups
from slipstream.bench.measure.roofline import Machine, Weights, bytes_per_token, held_weights, intensity, probe_machine
from slipstream.bench.records import RecordContext, records
from slipstream.bench.table import ResultTable, tables, text
from slipstream.bench.workloads import Item, Workload
from slipstream.core.sampling import Sampling
from slipstream.engines.base import Chunk, GenerationOptions, SpeculationStats
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.sources.load import ModelFiles
from tiny import build

MACHINE = Machine(bandwidth=1e9, arithmetic=1e11)
TARGET = Weights(read=10_000_000, per_token=1000, parameters=2_500_000)


def run(speed: float, cycles: int = 40, answer: str = "4", tokens: int = 80) -> Measurement:
    tally = SpeculationStats(cycles, tokens, [cycles, cycles], [30, 10])
    first = [0.5]
    return Measurement(
        tokens, tokens / speed + 0.5, tokens, tokens / speed, first, cycles, 0, tally, 10**9, [answer], [answer]
    )


PLAIN, FAST = (Cell(Setup("native", *rest), 1, 0.0, "w") for rest in (("none", 0, None), ("ngram", 2, None)))
WORK = {"w": Workload("w", (Item(("2 + 2?",), "w", reference="4", metric="exact"),))}


def made(fast: list[float] = [20.0, 22.0, 24.0], answer: str = "4") -> list[dict]:  # noqa: B006
    measured = {PLAIN: [run(s) for s in (10.0, 11.0, 12.0)], FAST: [run(s, answer=answer) for s in fast]}
    return records(measured, WORK, RecordContext(MACHINE, {PLAIN: TARGET, FAST: TARGET}, draft_speeds={FAST: 99.0}))


def results(**more) -> dict:
    about = {"commit": "a", "date": "d", "model": "m", "sha256": "s", "hardware": {"cores": 2}, "settings": {}}
    return about | {"records": made()} | more


def test_groups_are_full():
    assert list(groups(3, 1)) == [[0], [1], [2]]
    assert list(groups(3, 2)) == [[0, 1], [2, 3]]
    assert list(groups(3, 8)) == [list(range(8))]


def test_decoding_is_timed_from_when_every_row_has_begun():
    found = Measurement()
    early, late = [(1.0, 1), (2.0, 3), (5.0, 2)], [(3.0, 2), (4.0, 1), (7.0, 4)]
    add_times(found, [early, late], start=0.5, end=7.5)
    assert (found.decoded, found.decoding) == (2 + 1 + 4, 4.0)
    assert (found.seconds, found.first) == (7.0, [0.5, 2.5])
    add_times(found, [[(8.0, 5)], []], start=7.5, end=9.0)  # all at once, and nothing at all
    assert (found.decoded, found.decoding, found.seconds) == (7, 4.0, 8.5)


def test_every_chunk_of_a_request_has_the_time_at_which_it_came():
    with NativeEngine(letters.target(), "none") as engine:
        began = time.perf_counter()
        (handle,) = engine.submit("abcabc", Sampling(0), GenerationOptions(12, ignore_eos=True))
        timer = StreamTimer(handle)
        handle.wait()
        ended, stamps = time.perf_counter(), timer.stamps()
    assert sum(count for _, count in stamps) == 12
    times = [when for when, _ in stamps]
    assert times == sorted(times)
    assert began < times[0] <= times[-1] < ended
    assert handle.result().finish_reason == "length"


@pytest.mark.parametrize(("notes", "times"), [(3, [2.0, 3.0, 4.0]), (2, [3.0, 3.0, 4.0]), (4, [2.0, 3.0, 4.0])])
def test_chunks_that_came_before_the_first_note_have_its_time(notes, times):
    chunks = [Chunk("a", (1, 2), ()), Chunk("", (), ()), Chunk("b", (3,), (), finish_reason="length")]
    timer = StreamTimer(SimpleNamespace(notify=lambda note: None))
    timer.handle = chunks
    timer.times = [1.0, 2.0, 3.0, 4.0][4 - notes :]
    assert timer.stamps() == [(times[0], 2), (times[2], 1)], "a chunk without tokens counts for nothing"


def test_a_record():
    plain, fast = made()
    axes = ("native", "ngram", 2, "greedy", 1, 0.0, "w")
    assert (
        tuple(fast[name] for name in ("engine", "drafter", "depth", "rule", "batch", "temperature", "workload")) == axes
    )
    assert fast["tokens_per_second"] == pytest.approx((20 * 22 * 24) ** (1 / 3))
    assert fast["tokens_per_second_repeats"] == pytest.approx([20.0, 22.0, 24.0])
    assert fast["ratio_to_plain"] == fast["ratio_to_reference"] == pytest.approx(2.0)
    assert fast["ratio_to_plain_interval"] == pytest.approx([2.0, 2.0])
    assert fast["verdict"] == "faster"
    assert plain["ratio_to_plain"] is plain["ratio_to_reference"] is plain["verdict"] is None
    assert 1.0 < fast["ratio_to_plain_end_to_end"] < 2.0
    assert fast["tau"] == 2.0
    assert fast["acceptance"] == [0.75, 0.25]
    assert 1 + sum(fast["survival"]) == fast["tau"]
    assert fast["draft_tokens_per_second"] == 99.0
    assert fast["quality"] == {"exact": 1.0}
    assert fast["same_answers"] == 1.0
    assert made(answer="5")[1]["same_answers"] == 0.0
    assert made(answer="5")[1]["quality"] == {"exact": 0.0}


def test_the_limit_is_bytes_over_bandwidth():
    measured = run(20.0)
    measured.context = 4000
    assert bytes_per_token(measured, TARGET) == (40 * 10_000_000 + 4000 * 1000) / 80
    assert bytes_per_token(measured, TARGET, TARGET) == (40 * 10_000_000 + 4_000_000 + 80 * 10_000_000) / 80
    operations, rate = intensity(measured, TARGET)
    assert operations == pytest.approx(2 * 2_500_000 * 120 / 404_000_000)
    assert rate == pytest.approx(2 * 2_500_000 * 120 / 4.0)
    record = made()[1]
    assert record["share_of_limit"] == pytest.approx(22.0 * record["bytes_per_token"] / MACHINE.bandwidth)


def test_the_machine_is_measured():
    found = probe_machine("float32", size=1 << 22)
    assert found.bandwidth > 1e8
    assert found.arithmetic > 1e8


def test_a_journal_remembers_and_forgives_a_torn_end(tmp_path):
    with Journal(tmp_path) as journal:
        journal.add({"cell": 1, "repeat": 0}, {"value": 3})
    with open(tmp_path / "journal.jsonl", "ab") as file:
        file.write(b'{"key": {"cell": 2}, "entr')
    with Journal(tmp_path) as again:
        assert again.get({"repeat": 0, "cell": 1}) == {"value": 3}
        assert again.get({"cell": 2}) is None
        again.add({"cell": 2}, {"value": 4})
    with Journal(tmp_path) as journal:
        assert len(journal) == 2


def test_one_run_at_a_time_writes_to_a_folder(tmp_path):
    with Journal(tmp_path), pytest.raises(ValueError, match="another run is writing"):
        Journal(tmp_path)


def test_a_spoiled_journal_is_named_by_line(tmp_path):
    with Journal(tmp_path) as journal:
        journal.add({"cell": 1}, {})
    with open(tmp_path / "journal.jsonl", "a") as file:
        file.write("nonsense\n")
    with pytest.raises(ValueError, match=r"line 2 is no measurement"):
        Journal(tmp_path)


def test_no_space_is_a_sentence_and_leaves_no_half_line(tmp_path, monkeypatch):
    with Journal(tmp_path) as journal:
        journal.add({"cell": 1}, {})
        before = (tmp_path / "journal.jsonl").read_bytes()
        write = os.write
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
        with pytest.raises(ValueError, match="no space left"):
            journal.add({"cell": 2}, {})
        monkeypatch.undo()
        assert (tmp_path / "journal.jsonl").read_bytes() == before

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ValueError, match="no space left"):
        write_whole(tmp_path / "results.json", "{}")
    assert not list(tmp_path.glob("*results*"))


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write .*--out"):
        Journal(tmp_path / "file")


def test_two_results():
    old = results(records=made([10.0, 10.5, 11.0]))
    found = compare(results(), old)
    assert [r["verdict"] for r in found["records"]] == ["no clear difference", "faster"]
    assert found["records"][1]["ratio"] == pytest.approx(2.0, rel=0.1)
    assert compare(old, results())["records"][1]["verdict"] == "slower"
    assert found["differs"] == []
    assert compare(results(sha256="t"), old)["differs"] == ["sha256"]
    assert compare(results(hardware={"cores": 4}), old)["differs"] == ["hardware"]
    other = [{**record, "workload_digest": "x"} for record in made()]
    assert compare(results(), results(records=other))["other_prompts"] == 2
    assert compare(results(), results(records=[]))["only_now"] == 2


def test_what_is_no_result(tmp_path):
    path = tmp_path / "r.json"
    with pytest.raises(ValueError, match="cannot read"):
        read_results(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="is malformed"):
        read_results(path)
    path.write_text(json.dumps({"a": 1}))
    with pytest.raises(ValueError, match="holds no results"):
        read_results(path)


def test_tables():
    (table,) = tables(results())
    assert table.title == "w, batch 1, temperature 0"
    assert len(table.rows) == 2
    shown = text(table)
    assert "2.00" in shown
    assert "exact 1.00" in shown
    assert "99.0" in shown  # the draft model's own speed
    assert tables(results(against=compare(results(), results())))[1].rows[0][-1] == "no clear difference"
    assert text(ResultTable("t", ["a", "b"], [["long", "1"]])) == "t\na     b\nlong  1"


def test_numbers_stored_in_two_bytes_are_read_as_such_by_our_kernels(tmp_path):
    build("llama").bfloat16().save_pretrained(tmp_path)
    found = ModelFiles("tiny", tmp_path, "folder")
    mine, theirs = (held_weights(engine, found, "tiny (float32)") for engine in ("native", "transformers"))
    assert 2 * mine.read == theirs.read
    assert mine.parameters == theirs.parameters
    assert held_weights("native", found, "tiny (bfloat16)").read == mine.read
