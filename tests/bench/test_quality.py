"""Scores, and the process that runs a model's code."""

from __future__ import annotations

import pytest

from slipstream.bench.quality.sandbox import SandboxLimits, passes
from slipstream.bench.quality.scores import SCORES, judge, program, rouge_l
from slipstream.bench.workloads import Item

QUICK = SandboxLimits(seconds=0.5)


def item(reference: str, metric: str) -> Item:
    return Item(("?",), "x", reference=reference, metric=metric)


@pytest.mark.parametrize(
    ("reference", "answer", "score"),
    [
        ("40", "250 - 10 = 240, 240 / 6 = 40", 1.0),
        ("40", "40 bags, so he sold 240 rolls", 0.0),
        ("8.5", "Each pays 8.50.", 1.0),
        ("1250", "It is 1,250", 1.0),
        ("-3", "x = -3", 1.0),
        ("7", "seven", 0.0),
    ],
)
def test_the_last_number(reference, answer, score):
    assert SCORES["exact"](item(reference, "exact"), answer) == score


def test_rouge_by_hand():
    assert rouge_l("the cat sat on the mat", "The cat, on the mat!") == pytest.approx(2 * 5 / 11)
    assert rouge_l("a b c", "c b a") == pytest.approx(2 * 1 / 6)
    assert rouge_l("a", "") == 0.0


def test_means_by_metric_over_what_can_be_scored():
    items = [item("4", "exact"), item("5", "exact"), item("Paris", "contains"), Item(("?",), "x")]
    found = judge(items, ["4", "4", "It is paris.", "anything"])
    assert found.scores == {"contains": 1.0, "exact": 0.5}
    assert found.counts == {"contains": 1, "exact": 2}


def test_the_code_of_an_answer():
    assert program(Item(("def f():\n",), "x", raw=True), "    return 1") == "def f():\n    return 1"
    assert program(Item(("?",), "x"), "So:\n```python\na = 1\n```\nand\n```\nb = 2\n```") == "a = 1\n\nb = 2\n"
    assert program(Item(("?",), "x"), "```python\na = 1") == "a = 1"  # cut off by the limit of tokens
    assert program(Item(("?",), "x"), "a = 1") == "a = 1"


@pytest.mark.parametrize("code", ["x = 1\nassert x == 1", "import math, re, collections, typing\nprint(math.pi)"])
def test_good_code_passes(code):
    assert passes(code)


@pytest.mark.parametrize(
    "code",
    [
        "assert False",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise SystemExit",
        "while True: pass",
        "x = 'a' * (1 << 31)",
        "open('f', 'w').write('x')",
        "import os; os.open('f', os.O_CREAT | os.O_WRONLY)",
        "import os; os.remove('/nothing')",
        "import socket; socket.socket()",
        "import urllib.request; urllib.request.urlopen('http://localhost:1')",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.fork()",
        "import os\ntry:\n    os.fork()\nexcept BaseException:\n    pass",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except BaseException:\n        pass",
        "try:\n    open('f', 'w').write('x')\nexcept BaseException:\n    pass",
        "import _posixsubprocess\n_posixsubprocess.fork_exec()",
        "import ctypes; ctypes.CDLL(None)",
        "while True: print('x' * 10000)",
        "not python at all",
    ],
)
def test_what_code_may_not_do(code):
    assert not passes(code, QUICK)
