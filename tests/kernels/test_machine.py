"""A container's share of time bounds the threads."""

from __future__ import annotations

import os

import pytest

from slipstream.kernels import machine


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "90000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_cores(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    bound = len(os.sched_getaffinity(0))
    assert machine.cores(tmp_path) == (bound if expected is None else min(bound, expected))


def test_a_word_for_those_who_ask(monkeypatch, capsys):
    machine.say("nothing")
    monkeypatch.setenv("SLIPSTREAM_DEBUG", "1")
    machine.say("something")
    assert capsys.readouterr().err == "something\n"
