"""How an audit presents its checks: how many, how long, and in columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from slipstream.audit.check import Check, Planned
from slipstream.audit.planted.chain import PLANTED
from slipstream.audit.subject import Pair
from slipstream.audit.tables.run import plan_rules, plan_self_test
from slipstream.cli.audit.check_runner import duration, duration_range, print_line, run_checks
from slipstream.core.rules import rules

LONG = "no_replace: penalties, bias, banned tokens, two candidates"
PAIR = Pair.random(2)


DETAIL = " ".join(["a long detail [1]"] * 5)
CHECKS = [Check("token: [a]", "exact", True, "a short detail"), Check(LONG, "exact", False, DETAIL)]


def console(terminal: bool) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=80,
        color_system=None,
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def lines(out: Console) -> list[str]:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


def shown() -> list[str]:
    """The lines of an audit of two checks, as a file shows them."""
    plan = [Planned(check.name, lambda check=check: check, 30.0) for check in CHECKS]
    out = console(terminal=False)
    assert run_checks(out, plan, 1.0) == CHECKS
    return lines(out)


def test_the_number_of_checks_and_the_time_come_first():
    assert shown()[0] == "2 checks, expected to take 30 s to 2 min, longer on a busy machine"


def test_the_time_that_the_checks_took_comes_last():
    assert shown()[-1] == "the checks took 0 s"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3, "less than a minute"),
        (12, "expected to take 10 s to 20 s, longer on a busy machine"),
        (240, "expected to take 2 min to 8 min, longer on a busy machine"),
    ],
)
def test_the_expected_time_is_a_range(seconds, words):
    """The costs of checks are rough: one number would promise more than is known."""
    assert duration_range(seconds) == words


def test_columns_are_aligned_whatever_the_names():
    short, long = shown()[1:-1]
    assert [line[:10].split() for line in (short, long)] == [["ok", "1/2"], ["FAILED", "2/2"]]
    assert short.index("exact") == long.index("exact") > long.index(LONG) + len(LONG)
    assert "token: [a]" in short
    assert long.endswith(DETAIL)


def test_a_narrow_terminal_shows_a_long_detail_below_its_check():
    out = console(terminal=True)
    print_line(out, "2/2", False, LONG, len(LONG), "exact", DETAIL)
    first, *below = [line.rstrip() for line in lines(out)]
    assert first.split() == ["FAILED", "2/2", *LONG.split(), "exact"]
    assert all(line.startswith(" " * 11) and len(line) <= 80 for line in below)
    assert " ".join(line.strip() for line in below) == DETAIL


def test_planned_names_are_the_names_of_the_checks():
    plan = plan_rules(["greedy"], PAIR, 2, 1000)
    assert [check.name for check in plan] == [check.run().name for check in plan]


def test_every_check_has_a_name_of_its_own():
    names = [check.name for check in plan_rules(rules.names(), PAIR, 2, 1000)]
    assert len(set(names)) == len(names) > 60
    assert len(plan_self_test(PAIR, 1000)) == len(PLANTED)


@pytest.mark.parametrize(
    ("seconds", "words"), [(3, "a few seconds"), (44, "about 40 s"), (95, "about 2 min"), (600, "about 10 min")]
)
def test_times_are_rough(seconds, words):
    assert duration(seconds) == words
