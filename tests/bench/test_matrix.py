"""From words to cells."""

from __future__ import annotations

import pytest

from slipstream.bench.matrix import Matrix, Setup
from slipstream.bench.run import BenchSchedule
from slipstream.bench.workloads import load_workloads


def test_plain_decoding_is_always_there_and_once():
    cells = Matrix(drafters=("ngram",), depth="2,4", batch="1,8").cells(["code"])
    assert [(c.setup.drafter, c.setup.depth, c.batch) for c in cells] == [
        ("none", 0, 1), ("ngram", 2, 1), ("ngram", 4, 1), ("none", 0, 8), ("ngram", 2, 8), ("ngram", 4, 8),
    ]  # fmt: skip
    assert cells == Matrix(drafters=("none", "ngram", "none"), depth="0,2,4", batch="1,8").cells(["code"])


def test_rules_differ_only_where_something_is_drawn():
    cells = Matrix(verify="block,coupled", temperature="0,0.8").cells(["code"])
    assert [(c.temperature, c.rule) for c in cells] == [
        (0, "plain"), (0, "greedy"), (0.8, "plain"), (0.8, "block"), (0.8, "coupled"),
    ]  # fmt: skip


def test_ranges_and_lists():
    depths = [s.depth for s in Matrix(depth="auto,1-3,6").setups() if not s.plain]
    assert depths == [None, 1, 2, 3, 6]


def test_engines_and_drafters_of_one_engine():
    setups = Matrix(("native", "transformers"), ("native:ngram", "draft_model")).setups()
    assert [(s.engine, s.drafter) for s in setups] == [
        ("native", "none"), ("transformers", "none"), ("native", "ngram"),
        ("native", "draft_model"), ("transformers", "draft_model"),
    ]  # fmt: skip


def test_options_reach_whom_they_name():
    matrix = Matrix(
        ("native", "vllm"), ("ngram", "draft_model"),
        options={"longest": "3", "draft_model.layers": "0-9", "vllm.python": "/bin/python"},
    )  # fmt: skip
    assert matrix.options_of(Setup("native", "none", 0, None)) == {}
    assert matrix.options_of(Setup("native", "ngram", None, None)) == {"longest": "3"}
    assert matrix.options_of(Setup("native", "draft_model", None, None)) == {"longest": "3", "layers": "0-9"}
    assert matrix.options_of(Setup("vllm", "none", 0, None)) == {"python": "/bin/python"}
    with pytest.raises(ValueError, match="which is not measured"):
        Matrix(options={"llamacpp.x": "1"}).check_options()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"depth": "two"}, "depth holds 'two'"),
        ({"depth": "4-2"}, "depth holds '4-2'"),
        ({"batch": "0"}, "batch holds '0'"),
        ({"batch": "1,,2"}, "commas between"),
        ({"temperature": "-1"}, "temperature holds '-1'"),
        ({"temperature": "nan"}, "temperature holds 'nan'"),
        ({"verify": "blok"}, "did you mean block"),
        ({"engines": ("nativ",)}, "did you mean native"),
        ({"drafters": ("vllm:ngram",)}, "add --engine vllm"),
    ],
)
def test_bad_words(words, says):
    with pytest.raises(ValueError, match=says):
        Matrix(**words).cells(["code"])


def test_setups_take_turns_and_none_is_always_first():
    workloads = {w.name: w for w in load_workloads("code,chat")}
    cells = Matrix(depth="1-2").cells(list(workloads))
    order = list(BenchSchedule(cells, workloads, 3, 8, {}).order())
    assert len(order) == len(set(order)) == 3 * len(cells) == 18
    for start in range(0, 18, 3):  # every three in a row are the three setups of one load in one repeat
        assert len({(repeat, cell.load) for repeat, cell in order[start : start + 3]}) == 1
        assert len({cell.setup for _, cell in order[start : start + 3]}) == 3
    assert {order[start][1].setup.depth for start in range(0, 18, 6)} == {0, 1, 2}
