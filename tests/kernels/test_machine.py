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


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_memory(tmp_path, name):
    installed = machine.memory(tmp_path)
    assert installed > 1 << 28
    (tmp_path / name).parent.mkdir(exist_ok=True)
    for text, expected in (("max", installed), ("9223372036854771712", installed), ("1048576\n", 1 << 20)):
        (tmp_path / name).write_text(text)
        assert machine.memory(tmp_path) == expected


def test_a_warning_is_written_once(capsys):
    machine.warn.cache_clear()
    for sentence in ("slow", "slow", "slower"):
        machine.warn(sentence)
    assert capsys.readouterr().err == "slipstream: slow\nslipstream: slower\n"


def test_a_word_for_those_who_ask(monkeypatch, capsys):
    machine.say("nothing")
    monkeypatch.setenv("SLIPSTREAM_DEBUG", "1")
    machine.say("something")
    assert capsys.readouterr().err == "something\n"
