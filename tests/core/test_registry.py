from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from slipstream.core import registry
from slipstream.core.registry import Registry


def test_names_are_imported_when_asked_for():
    things = Registry("thing", {"board": "sched:scheduler"})
    sys.modules.pop("sched", None)
    assert things.names() == ["board"]
    assert "sched" not in sys.modules
    assert things.get("board").__name__ == "scheduler"


def test_an_unknown_name_is_answered_with_the_legal_ones():
    things = Registry("thing", {"ngram": "x:y", "suffix": "x:y"})
    with pytest.raises(ValueError, match=r"no thing called 'ngam'; one of ngram, suffix; did you mean ngram\?"):
        things.get("ngam")


def test_a_plugin_registers_through_its_entry_point(monkeypatch):
    point = EntryPoint("extra", "collections:Counter", "slipstream.things")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "slipstream.things" else [])
    things = Registry("thing", {})
    assert things.get("extra").__name__ == "Counter"


def test_registering_by_hand():
    things = Registry("thing", {})
    things.register("counter", "collections:Counter")
    assert things.names() == ["counter"]
