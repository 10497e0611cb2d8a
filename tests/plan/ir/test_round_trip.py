"""Text, JSON and Python forms of a plan give the same plan again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.plan.ir import nodes
from slipstream.plan.ir.json_form import from_json, to_json
from slipstream.plan.ir.library import library, load_plan
from slipstream.plan.ir.nodes import (
    AdaptiveDepth,
    AutoRule,
    CommitNode,
    DrafterNode,
    DraftNode,
    GuardNode,
    ModelNode,
    Plan,
    RouteNode,
    ScoreNode,
    StageNode,
    VerifyNode,
)
from slipstream.plan.ir.parser import parse_plan
from slipstream.plan.ir.text import text_of

NAMES = st.builds(str.__add__, st.text("ahz_", min_size=1, max_size=3), st.text("a09_", max_size=3))
STRINGS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=8)
VALUES = st.one_of(
    STRINGS,
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.sampled_from(["true", "none", "24", "0..8", "a b", "4x2"]),
)
COMMENTS = st.lists(st.text('az #=%"', min_size=1, max_size=8).filter(lambda c: c == c.strip()), max_size=2).map(tuple)
DEPTHS = st.one_of(st.integers(1, 99), st.builds(AdaptiveDepth, st.just(0), st.integers(1, 99), NAMES))
LEVELS = st.sampled_from(["request", "token"])
SCORES = st.sampled_from(["mean", "quantile(q=0.25)", "entropy(k=20)"])
ROUTES = st.builds(
    RouteNode, st.just("r"), st.just("target"), st.just("v"), LEVELS, st.floats(0, 1), SCORES, st.booleans()
)
RULES = st.one_of(NAMES.filter(lambda name: is_word(name) and name != "auto"), st.builds(AutoRule, NAMES, NAMES))


def is_word(name: str) -> bool:
    return name not in ("true", "false", "none")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    model = ModelNode(
        "target",
        draw(STRINGS),
        dtype=draw(NAMES.filter(is_word)),
        context=draw(st.none() | st.integers(1, 9999)),
        invariant=draw(st.none() | st.booleans()),
        tensor_parallel=draw(st.integers(1, 8)),
        comments=draw(COMMENTS),
        remark=(draw(COMMENTS) or ("",))[0],
    )
    shape = draw(st.none() | st.sampled_from(["24", "4x2x1", "-1,-1,0"]))
    steps = [
        DrafterNode("first", draw(NAMES.filter(lambda name: name not in ("model", "stage"))), draw(options())),
        DrafterNode("second", "kind", draw(options()), comments=draw(COMMENTS)),
        StageNode("both", ("first", "second")),
        DraftNode("d", "both", draw(DEPTHS), shape, draw(st.booleans())),
        GuardNode("g", "d"),
        ScoreNode("s", "target", draw(st.sampled_from(["g", None]))),
        VerifyNode("v", draw(RULES), "s", draw(st.booleans())),
        RouteNode(
            "r",
            "target",
            "v",
            draw(st.sampled_from(["request", "token"])),
            draw(st.floats(0, 1)),
            draw(SCORES),
            draw(st.booleans()),
        ),
        CommitNode("r", comments=draw(COMMENTS)),
    ]
    return Plan(draw(STRINGS.filter(bool)), (model, *steps), 1, draw(COMMENTS), draw(COMMENTS))


def options() -> st.SearchStrategy[dict[str, nodes.Value]]:
    return st.dictionaries(NAMES, VALUES, max_size=3)


def commented(plan: Plan) -> list[object]:
    return [plan.heading, plan.comments, *((node.comments, node.remark) for node in plan.nodes)]


@given(plans())
def test_text_json_and_python_round_trip(plan):
    text = text_of(plan)
    for again in (
        parse_plan(text),
        parse_plan(text_of(plan, full=True)),
        from_json(json.loads(json.dumps(to_json(plan)))),
    ):
        assert again == plan
        assert commented(again) == commented(plan)
        assert text_of(again) == text
    assert eval(repr(plan), vars(nodes)) == plan


@pytest.mark.parametrize("name", library())
def test_the_plans_of_the_library_are_written_as_they_are_printed(name):
    plan = load_plan(name)
    assert plan.name == name
    assert text_of(plan) == library()[name].read_text()


def test_comments_and_positions_do_not_make_plans_differ():
    plan = load_plan("ngram")
    bare = Plan(plan.name, tuple(replace(node, comments=(), remark="", position=None) for node in plan.nodes))
    assert bare == plan
    assert bare.nodes[0] != replace(bare.nodes[0], dtype="float32")
