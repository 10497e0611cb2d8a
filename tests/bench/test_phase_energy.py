"""Joules per token by phase: the arithmetic, the host loop on a tiny model, and the parts of captured cycles."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import letters
from slipstream.bench.measure.energy import Meter, power_model
from slipstream.bench.measure.phase_energy import PhaseLoad, PhasePower, WholeRun, by_phase
from slipstream.bench.measure.phase_loops import PhaseClock
from slipstream.bench.measure.phases import energy_by_phase
from slipstream.bench.workloads import Item
from slipstream.engines.native.build import build_target
from slipstream.kernels.energy_sources import EnergySource

ITEMS = [Item(("abcabcabc",), "letters", raw=True)]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("letters")
    letters.plain().save_pretrained(folder)
    letters.tokenizer().save_pretrained(folder)
    return build_target(str(folder), device="cpu")


def test_rejected_tokens_waste_their_drafting_and_what_they_add_to_a_pass():
    phases = {"draft": PhasePower(100, 0.004), "score": PhasePower(300, 0.010), "verify": PhasePower(50, 0.002)}
    phases["host"] = PhasePower(80, 0.001)
    whole, plain = WholeRun(7.96, 0.034, 4, 2, accepted=1.0), WholeRun(10.0, 0.1, 5, 5)
    found = by_phase(phases, 2.4, whole, plain, 60.0, ("d", 4, 1, 0.0), ("fake", False))
    assert found.phases == pytest.approx({"draft": 0.2, "score": 1.5, "verify": 0.05, "host": 0.04})
    assert found.wasted == pytest.approx(0.75 * (0.4 + 0.6) / 2)
    assert found.kept + found.wasted == pytest.approx(1.79)
    assert found.joules_per_token == pytest.approx(1.99)
    assert found.closure_error == pytest.approx(1.79 / 1.99 - 1)
    assert (found.tau, found.plain_joules_per_token) == (2.0, 2.0)
    assert found.idle == pytest.approx(60 * 0.034 / 4)


def test_the_clock_adds_up_phases_that_follow_each_other():
    now, spent = iter([0.0, 1.0, 3.0, 4.0]), iter([0.0, 10.0, 50.0, 55.0])
    clock = PhaseClock(Meter(EnergySource("fake", lambda: next(spent), 0.0)), lambda: next(now))
    clock.start()
    for phase in ("draft", "score", "draft"):
        clock.end(phase)
    clock.cycles = 2
    phases = clock.phases()
    assert phases["draft"] == PhasePower(7.5, 1.0)
    assert phases["score"] == PhasePower(20.0, 1.0)


def test_phases_of_the_host_loop_add_up_to_whole_runs(target):
    with power_model(50):
        found = energy_by_phase(target, PhaseLoad("ngram", 3, 2, seconds=0.1, max_tokens=24), ITEMS)
    assert not isinstance(found, str), found
    assert set(found.phases) == {"draft", "score", "verify", "host"}
    assert all(joules > 0 for joules in found.phases.values())
    assert found.tau > 1
    assert found.estimate


def test_parts_are_repeated_for_seconds_and_cycles_that_are_not_captured_say_so(target, monkeypatch):
    pytest.importorskip("triton", reason="captured cycles need Triton")
    from slipstream.bench.measure import captured_phases

    with power_model(50):
        meter, reason = Meter.open("cpu")
    assert meter is not None, reason
    load = PhaseLoad("ngram", 3, seconds=0.02, max_tokens=8)
    said = captured_phases.captured_phases(target, load, ITEMS, meter, None)
    assert said == "the counter is too slow for single phases, and these cycles are not captured as graphs"
    calls: list[str] = []
    parts = {name: (lambda name=name: calls.append(name)) for name in ("draft", "score")}
    cycle = SimpleNamespace(load_rows=lambda *given: calls.append("load"), parts=lambda names: parts)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    powers = captured_phases._part_powers(cycle, 10, load, meter, ["draft", "score"])
    assert list(powers) == ["draft", "score"]
    assert powers["draft"].watts == pytest.approx(50, rel=0.05)
    assert calls.count("draft") % captured_phases.REPLAYS == 0
