"""Problems of tasks, their grading, and the intervals of accuracies."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from slipstream.bench.tasks import grading
from slipstream.bench.tasks.grading import correct, final_number, program
from slipstream.bench.tasks.intervals import graded_bound, interval, lower_bound, problems_needed, upper_share
from slipstream.bench.tasks.problems import Problem, load_task, problem_of

HUMAN_EVAL = {
    "task_id": "HumanEval/x",
    "prompt": 'from typing import List\n\ndef add(a: int, b: int) -> int:\n    """ The sum. """\n',
    "entry_point": "add",
    "test": "def check(f):\n    assert f(1, 2) == 3\n",
}


@pytest.mark.parametrize(
    ("checker", "answer", "text", "right"),
    [
        ("exact", "Paris", " Paris\n", True),
        ("exact", "Paris", "It is Paris", False),
        ("number", "1250", "12 x 100 = 1,200, so 1,250.", True),
        ("number", "8.5", "#### 8.50 (not 9)", True),
        ("number", "3", r"thus \boxed{3}, see 4", True),
        ("number", "3", "three", False),
        ("regex", r"\bcats?\b", "two cats", True),
        ("regex", r"^cat", "two cats", False),
    ],
)
def test_texts_are_checked(checker, answer, text, right):
    assert correct(Problem("1", "?", checker, answer), text) is right


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("```python\ndef add(a, b):\n    return a + b\n```", True),
        ("Here:\n```\ndef add(a: int, b: int) -> List[int]:\n    return a + b\n```\nDone.", True),
        ("    return a + b\n", True),
        ("def add(a, b):\n    return a + b", True),
        ("```python\ndef add(a, b):\n    return a - b\n```", False),
        ("```python\nimport os\nwhile True:\n    os.fork()\n```", False),
    ],
)
def test_code_is_run(answer, right):
    problem = problem_of(HUMAN_EVAL, "x")
    assert problem.checker == "python"
    assert correct(problem, answer) is right


def test_a_function_is_asked_for_or_continued():
    problem = problem_of(HUMAN_EVAL, "x")
    assert "Complete this Python function" in problem.text(instruct=True)[0]
    prompt, raw, stop = problem.text(instruct=False)
    assert (prompt, raw, bool(stop)) == (HUMAN_EVAL["prompt"], True, True)
    assert program(Problem("1", "?", "python", test="assert x"), "```\nx = 1\n```") == "x = 1\n\n\nassert x\n"


def test_published_files_are_read():
    mbpp = problem_of({"task_id": 2, "text": "Add.", "test_list": ["assert add(1, 1) == 2"]}, "x")
    assert (mbpp.id, mbpp.checker, mbpp.test) == ("mbpp/2", "python", "assert add(1, 1) == 2")
    assert "assert add" in mbpp.prompt
    gsm8k = problem_of({"question": "How many?", "answer": "2 + 2\n#### 1,004"}, "x")
    assert (gsm8k.checker, final_number(gsm8k.answer)) == ("number", 1004.0)
    assert problem_of({"prompt": "?", "checker": "number", "reference": 4}, "x").answer == "4"


def test_a_line_ends_at_its_newline_and_at_no_other_separator(tmp_path):
    path = tmp_path / "mine.jsonl"
    line = json.dumps({"prompt": "one\u2028line?", "checker": "exact", "answer": "1"}, ensure_ascii=False)
    path.write_text(f"{line}\n{line}\n", encoding="utf-8")
    assert [problem.prompt for problem in load_task(str(path)).problems] == ["one\u2028line?"] * 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "?"}', "it has no checker; it must be one of exact, number, regex, python"),
        ('{"prompt": "?", "checker": "judge"}', "its checker is 'judge'; it must be one of"),
        ('{"prompt": "?", "checker": "exact"}', "its checker exact needs the field answer, as text"),
        ('{"prompt": "?", "checker": "python"}', "its checker python needs the field test, as text"),
        ('{"prompt": "?", "checker": "regex", "answer": "("}', "is no regular expression"),
        ('{"checker": "exact", "answer": "a"}', "it has no prompt"),
        ("[]", "it must be one JSON object"),
        ("{", "line 1 is not JSON"),
        ("", "holds no problem"),
    ],
)
def test_what_is_no_task(tmp_path, line, message):
    path = tmp_path / "t.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        load_task(str(path))


def test_named_tasks_are_local_files(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_TASKS", str(tmp_path))
    with pytest.raises(ValueError, match=r"slipstream brings no problems: put humaneval\.jsonl into"):
        load_task("humaneval")
    (tmp_path / "humaneval.jsonl").write_text(2 * (json.dumps(HUMAN_EVAL) + "\n"))
    assert len(load_task("humaneval").problems) == 2
    assert len(load_task("humaneval:1").problems) == 1
    assert load_task("humaneval").metric == "pass@1"
    with pytest.raises(ValueError, match="holds 2 problems; humaneval:3 asks for 3"):
        load_task("humaneval:3")
    with pytest.raises(ValueError, match=r"there is no task 'nothing'; it must be humaneval, mbpp, gsm8k or a .jsonl"):
        load_task("nothing")


def test_an_interval_covers_the_truth():
    chance = np.random.default_rng(1)
    samples = [list(map(float, chance.random(60) < 0.7)) for _ in range(60)]
    inside = sum(low <= 0.7 <= high for low, high in map(interval, samples))
    assert inside >= 52
    assert interval([1.0] * 10) == (pytest.approx(0.025**0.1), 1.0)
    assert interval([0.0]) == (0.0, pytest.approx(0.975))


@pytest.mark.parametrize(("worse", "better"), [(0.02, 0.01), (0.05, 0.03), (0.07, 0.05), (0.1, 0.1)])
def test_a_paired_bound_holds_at_its_level(worse, better):
    """Every outcome of so many problems with its probability: the bound is at most the true difference in 95 %."""
    total, covered, seen = 150, 0.0, 0.0
    for losses in range(35):
        for gains in range(35):
            same = total - losses - gains
            ways = math.lgamma(total + 1) - sum(math.lgamma(n + 1) for n in (losses, gains, same))
            log = ways + losses * math.log(worse) + gains * math.log(better) + same * math.log(1 - worse - better)
            seen += math.exp(log)
            covered += math.exp(log) * (graded_bound(gains, losses, total) <= better - worse)
    assert seen > 0.999
    assert covered >= 0.949


def test_the_bound_of_grades_and_of_other_values():
    grades = [-1.0] * 3 + [1.0] * 2 + [0.0] * 95
    assert lower_bound(grades) == graded_bound(2, 3, 100)
    assert lower_bound([value + 0.001 * (i % 20) for i, value in enumerate(grades)]) == pytest.approx(-0.03, abs=0.03)


def test_a_paired_bound_is_no_better_than_the_problems_allow():
    assert lower_bound([0.0] * 20) == pytest.approx(-(1 - 0.05 ** (1 / 20)))
    assert lower_bound([0.0] * 149) > -0.02 > lower_bound([0.0] * 147)
    assert upper_share(0, 100) == pytest.approx(1 - 0.05**0.01)
    assert upper_share(5, 5) == 1.0
    assert lower_bound([-1.0] + [0.0] * 99) < -0.01
    assert problems_needed(0.02, [0.0] * 20) == 149
    assert problems_needed(0.02, [-1.0, 0.0]) == 0  # they are worse by more than the margin
    mixed = [1.0, -1.0, 0.0, 0.0] * 10
    assert problems_needed(0.02, mixed) == pytest.approx((1.6449 * 0.5**0.5 / 0.02) ** 2, abs=1)


def test_several_files_are_one_task(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "?", "checker": "exact", "answer": "1"}\n' * 2)
    task = load_task(f"{tmp_path}/a.jsonl:1,{tmp_path}/b.jsonl")
    assert (task.name, [problem.id for problem in task.problems]) == ("a+b", ["a/1", "b/1", "b/2"])


def test_equal_answers_are_graded_once(monkeypatch):
    seen = []
    monkeypatch.setitem(grading.CHECKS, "exact", lambda problem, answer: seen.append(answer) or answer == "1")
    problem = Problem("1", "?", "exact", "1")
    assert grading.grade([(problem, "1"), (problem, "2"), (problem, "1")]) == [True, False, True]
    assert sorted(seen) == ["1", "2"]
