"""Prompts: those shipped, those of files in four formats, and lines that are none."""

from __future__ import annotations

import gzip
import json

import pytest

from slipstream.bench.quality.scores import SCORES
from slipstream.bench.workloads import load_workloads, shipped
from slipstream.bench.workloads.formats import FUNCTION_ENDS, read_items

NAMES = ["chat", "code", "creative", "long", "maths", "rewriting", "summary", "translation"]


def written(tmp_path, *lines):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_what_is_shipped():
    assert shipped() == NAMES
    for workload in load_workloads(",".join(NAMES)):
        assert 6 <= len(workload.items) <= 10
        assert len({item.turns for item in workload.items}) == len(workload.items)
        assert all(item.task == workload.name for item in workload.items)
    long = load_workloads("long")[0]
    assert all(len(item.turns[0]) > 3000 for item in long.items)


def test_shipped_references_score_full_marks_on_themselves():
    items = [item for workload in load_workloads(",".join(NAMES)) for item in workload.items if item.reference]
    assert len(items) > 30
    for item in items:
        assert SCORES[item.metric](item, item.reference) == 1.0, item.reference


def test_shipped_tests_are_python_that_a_wrong_answer_fails():
    items = [item for item in load_workloads("code")[0].items if item.tests]
    assert len(items) >= 6
    for item in items:
        compile(item.tests, "tests", "exec")
    assert SCORES["tests"](items[0], "def running_max(values):\n    return values") == 0.0
    good = (
        "Here it is:\n```python\ndef running_max(v):\n    return [max(v[: i + 1]) for i in range(len(v))]\n```\nDone."
    )
    assert SCORES["tests"](items[0], good) == 1.0


def test_compressed_files_hold_the_same_prompts(tmp_path):
    plain = written(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    packed = tmp_path / "mine.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load_workloads(str(packed)) == load_workloads(str(plain))
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(ValueError, match="cannot read the workload"):
        load_workloads(str(packed))


def test_names_counts_and_digests():
    code, chat = load_workloads("code,chat:3")
    assert (code.name, len(chat.items)) == ("code", 3)
    assert load_workloads("chat")[0].digest != chat.digest
    assert load_workloads("chat:3")[0].digest == chat.digest


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("codes", "did you mean code"),
        ("code:99", "holds 8 prompts"),
        ("code,code:2", "named twice"),
        ("nothing.jsonl", "no workload"),
        ("", "no workload"),
    ],
)
def test_what_is_no_workload(spec, says):
    with pytest.raises(ValueError, match=says):
        load_workloads(spec)


def test_our_own_format(tmp_path):
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    lines = [
        {"prompt": "2 + 2?", "reference": "4"},
        {"prompt": talk, "task": "talk"},
        {"prompt": "a", "reference": "b c"},
    ]
    first, second, third = read_items(written(tmp_path, lines[0], "", *lines[1:]))
    assert (first.metric, first.task, first.turns) == ("exact", "mine", ("2 + 2?",))
    assert (second.system, second.turns, second.task, second.metric) == ("Be brief.", ("Hi",), "talk", None)
    assert third.metric == "rouge"


def test_a_line_ends_at_its_newline_and_at_no_other_separator(tmp_path):
    texts = ["one\u2028line", "next\x85 line", "form\x0cfeed"]
    path = tmp_path / "mine.jsonl"
    path.write_text("\r\n".join(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts), encoding="utf-8")
    assert [item.turns for item in read_items(path)] == [(text,) for text in texts]


def test_human_eval(tmp_path):
    line = {
        "task_id": "HumanEval/0",
        "prompt": "def double(x):\n",
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(5) == 10\n",
        "entry_point": "double",
    }
    (item,) = read_items(written(tmp_path, line))
    assert item.raw
    assert item.stop == FUNCTION_ENDS
    assert SCORES["tests"](item, "    return 2 * x\n") == 1.0
    assert SCORES["tests"](item, "    return x ** 2\n") == 0.0


def test_spec_bench_and_mt_bench(tmp_path):
    spec = {"question_id": 1, "category": "translation", "turns": ["Translate: Hallo"], "reference": ["Hello"]}
    judged = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": ["A", "B"]}
    first, second = read_items(written(tmp_path, spec, judged))
    assert (first.task, first.metric, first.reference) == ("translation", "rouge", "Hello")
    assert (second.turns, second.metric) == (("Write.", "Again."), None)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "a"', "line 2 is not JSON"),
        ("[1]", "line 2 is no prompt: it must be one JSON object"),
        ('{"text": "a"}', "line 2 is no prompt: it has neither prompt nor turns"),
        ('{"prompt": ""}', "line 2 is no prompt: its prompt is empty"),
        ('{"prompt": 3}', "neither text nor a list of messages"),
        ('{"prompt": "a", "refrence": "b"}', "unknown field 'refrence'"),
        ('{"prompt": "a", "reference": 4}', "must be text"),
        ('{"prompt": "a", "metric": "bleu", "reference": "b"}', "one of tests, exact"),
        ('{"prompt": "a", "metric": "exact"}', "needs a reference"),
        ('{"turns": []}', "no list of texts"),
        ('{"entry_point": "f", "test": "x"}', "has no prompt"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, says):
    path = written(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(ValueError, match=says) as error:
        read_items(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_file_and_one_that_is_no_text(tmp_path):
    with pytest.raises(ValueError, match="holds no prompt"):
        read_items(written(tmp_path, "", " "))
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_items(tmp_path / "bytes.jsonl")
