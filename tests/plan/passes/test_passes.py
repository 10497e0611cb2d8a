"""Every pass, and every level, with its golden result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.engines.drafter_catalogue import DrafterCatalogue
from slipstream.plan.ir.build import add_route, build_plan
from slipstream.plan.ir.nodes import AutoRule, DrafterNode, DraftNode, Plan, PlanError, RouteNode, StageNode, VerifyNode
from slipstream.plan.ir.text import line_of
from slipstream.plan.passes.context import PassContext
from slipstream.plan.passes.figures import Figures, MeasuredDepth, Variant
from slipstream.plan.passes.levels import LEVELS, passes_of, run_passes
from slipstream.plan.passes.passes import PASSES

FIGURES = Figures(
    "m",
    plain=100.0,
    drafters={
        "ngram": (MeasuredDepth(1, 101.0, 1.2), MeasuredDepth(4, 90.0, 1.3)),
        "eagle": (MeasuredDepth(1, 130.0, 1.6), MeasuredDepth(4, 150.0, 2.4)),
    },
)
BRANCHING = replace(FIGURES, drafters={"eagle": (*FIGURES.drafters["eagle"], MeasuredDepth(4, 160.0, 3.0, 16))})
STAGES = Figures(
    "m",
    100.0,
    {"draft_model": (MeasuredDepth(4, 120.0, 2.0),)},
    staged={"draft_model": MeasuredDepth(4, 130.0, 2.1)},
)
FAST = MeasuredDepth(4, 170.0, 2.4)
VARIANTS = replace(
    FIGURES,
    drafters={**FIGURES.drafters, "draft_model": FIGURES.drafters["eagle"]},
    variants={
        "trim-vocab": {"eagle": Variant({"vocab": 4096}, FAST)},
        "quantise-draft": {"draft_model": Variant({"dtype": "int8"}, FAST)},
        "overlap": {"draft_model": Variant({}, FAST, overlap=True), "eagle": Variant({}, reason="it reads the target")},
    },
)
ENERGY = Figures(
    "m",
    100.0,
    {
        "ngram": (MeasuredDepth(1, 60.0, 1.2, joules=0.4), MeasuredDepth(4, 40.0, 1.3, joules=0.3)),
        "eagle": (MeasuredDepth(1, 130.0, 1.6, joules=0.5),),
    },
    {"ngram": {"longest": 2}},
    plain_joules=0.6,
    energy="RAPL",
)
SLOW = Figures("m", 100.0, {"ngram": (MeasuredDepth(1, 101.0, 1.2),)})
TREE = build_plan("m", "eagle", shape=8, depth=5)
HEAD = ['target = model("m")']
AUTO = "auto(seeded=coupled, else=block)"
PLAIN_END = ["%s = score target", f"%v = verify {AUTO} %s", "commit %v"]
DRAFT_END = ["%s = score target %d", f"%v = verify {AUTO} %s", "commit %v"]
TREE_END = [line.replace("else=block", "else=no_replace") for line in DRAFT_END]
GUARD_END = ["%g = guard %d", "%s = score target %g", f"%v = verify {AUTO} %s", "commit %v"]


SPEED_LEVELS = [level for level in LEVELS if level != "e"]


def lines(plan):
    return [line_of(node) for node in plan.nodes]


@pytest.mark.parametrize(
    ("name", "plan", "context", "golden"),
    [
        ("drop-draft", TREE, {}, [*HEAD, *PLAIN_END]),
        (
            "select-drafter",
            TREE,
            {"figures": FIGURES},
            [*HEAD, "eagle = eagle()", "%d = draft eagle depth=adaptive(0..8)", *DRAFT_END],
        ),
        ("select-drafter", build_plan("m", "eagle"), {"figures": SLOW}, [*HEAD, *PLAIN_END]),
        (
            "select-depth",
            build_plan("m", "eagle"),
            {"figures": FIGURES},
            [*HEAD, "eagle = eagle()", "%d = draft eagle depth=4", *DRAFT_END],
        ),
        (
            "select-shape",
            build_plan("m", "eagle", depth=4),
            {"figures": BRANCHING},
            [*HEAD, "eagle = eagle()", "%d = draft eagle depth=4 shape=16", *TREE_END],
        ),
        (
            "stage",
            build_plan("m", "draft_model", options={"model": "x"}, depth=4),
            {"figures": STAGES},
            [
                *HEAD,
                "ngram = ngram()",
                'draft_model = draft_model("x")',
                "stages = stage(ngram, draft_model)",
                "%d = draft stages depth=4",
                *DRAFT_END,
            ],
        ),
        (
            "trim-vocab",
            build_plan("m", "eagle", depth=4),
            {"figures": VARIANTS},
            [*HEAD, "eagle = eagle(vocab=4096)", "%d = draft eagle depth=4", *DRAFT_END],
        ),
        (
            "quantise-draft",
            build_plan("m", "draft_model", depth=4),
            {"figures": VARIANTS},
            [*HEAD, "draft_model = draft_model(dtype=int8)", "%d = draft draft_model depth=4", *DRAFT_END],
        ),
        (
            "overlap",
            build_plan("m", "draft_model", depth=4),
            {"figures": VARIANTS},
            [*HEAD, "draft_model = draft_model()", "%d = draft draft_model depth=4 overlap=true", *DRAFT_END],
        ),
        (
            "select-energy",
            TREE,
            {"figures": ENERGY, "latency": 0.02},
            [*HEAD, "ngram = ngram(longest=2)", "%d = draft ngram depth=1", *DRAFT_END],
        ),
        ("fix-chain", build_plan("m", "ngram"), {}, [*HEAD, "ngram = ngram()", "%d = draft ngram depth=4", *DRAFT_END]),
        (
            "adapt-depth",
            build_plan("m", "ngram", depth=3, guard=True),
            {},
            [*HEAD, "ngram = ngram()", "%d = draft ngram depth=adaptive(0..8)", *DRAFT_END],
        ),
        (
            "guard",
            build_plan("m", "ngram", depth=3),
            {},
            [*HEAD, "ngram = ngram()", "%d = draft ngram depth=3", *GUARD_END],
        ),
        ("place", build_plan("m"), {"device": "cpu"}, ['target = model("m", device=cpu)', *PLAIN_END]),
        (
            "lower",
            add_route(build_plan("m"), "x", level="token", threshold=0.4),
            {},
            [
                *HEAD,
                'small = draft_model("x")',
                "%r = draft small depth=8",
                "%s = score target %r",
                "%v = verify bild(fallback=0.4) %s lossy=true",
                "commit %v",
            ],
        ),
        (
            "specialise",
            build_plan("m"),
            {"temperature": 0.0},
            [*HEAD, "%s = score target", "%v = verify greedy %s", "commit %v"],
        ),
        (
            "specialise",
            build_plan("m"),
            {"seeded": True},
            [*HEAD, "%s = score target", "%v = verify coupled %s", "commit %v"],
        ),
    ],
)
def test_every_pass(name, plan, context, golden):
    (step,) = run_passes(plan, [name], PassContext(**context), DrafterCatalogue())
    assert lines(step.after) == golden
    assert step.changed
    again, _ = PASSES[name](step.after, PassContext(**context))
    assert again == step.after, "a pass that ran already changes nothing"


def test_every_pass_has_a_golden_test():
    marks = test_every_pass.pytestmark[0].args[1]
    assert {case[0] for case in marks} == set(PASSES)


@pytest.mark.parametrize("level", SPEED_LEVELS)
@pytest.mark.parametrize("plan", [build_plan("m"), build_plan("m", "ngram"), TREE], ids=["plain", "ngram", "tree"])
def test_levels_give_plans_that_pass_the_check(level, plan):
    steps = run_passes(plan, passes_of(level), PassContext(FIGURES, "cpu"), DrafterCatalogue())
    assert [step.name for step in steps] == list(LEVELS[level])
    drafts = [line for line in lines(steps[-1].after) if "draft" in line]
    expected = {"0": [], "2": ["%d = draft eagle depth=4"], "3": ["%d = draft eagle depth=adaptive(0..8)"]}
    if level in expected:
        assert drafts == expected[level]


def test_the_least_energy_within_a_bound_or_without_one():
    plan = build_plan("m", "eagle")
    for latency, draft in ((None, "ngram depth=4"), (0.02, "ngram depth=1"), (0.008, "eagle depth=1")):
        steps = run_passes(plan, passes_of("e"), PassContext(ENERGY, latency=latency), DrafterCatalogue())
        assert f"%d = draft {draft}" in lines(steps[-1].after)
    assert steps[0].reasons[0].startswith("per token (RAPL): plain: 0.600 J, 10.0 ms; ngram depth 1: 0.400 J, 16.7 ms")
    assert steps[0].reasons[1] == "eagle takes the least energy within 8 ms per token"
    steps = run_passes(plan, passes_of("e"), PassContext(replace(ENERGY, plain_joules=0.1)), DrafterCatalogue())
    assert lines(steps[-1].after) == [*HEAD, *PLAIN_END]


@pytest.mark.parametrize(
    ("plan", "variants", "reason"),
    [
        (build_plan("m"), {}, "the plan has no draft"),
        (build_plan("m", "eagle"), {}, "eagle was not measured so"),
        (build_plan("m", "eagle"), {"eagle": Variant({}, reason="it has none")}, "it has none"),
        (
            build_plan("m", "eagle"),
            {"eagle": Variant({"vocab": 9}, MeasuredDepth(4, 151.0, 2.0))},
            "eagle with vocab=9: 151.0 tokens/s, without 150.0",
        ),
    ],
)
def test_a_variant_that_is_not_faster_is_not_taken(plan, variants, reason):
    figures = replace(FIGURES, variants={"trim-vocab": variants})
    (step,) = run_passes(plan, ["trim-vocab"], PassContext(figures), DrafterCatalogue())
    assert (step.changed, step.reasons) == (False, (reason,))


@pytest.mark.parametrize("level", SPEED_LEVELS)
@pytest.mark.parametrize("route", ["request", "token"])
def test_routes_stay_at_every_level(level, route):
    plan = add_route(build_plan("m"), "x", level=route)
    steps = run_passes(plan, passes_of(level), PassContext(FIGURES, "cpu"), DrafterCatalogue())
    assert steps[-1].after.one(RouteNode) == plan.one(RouteNode)


def test_errors():
    with pytest.raises(PlanError, match="the pass select-drafter needs figures"):
        run_passes(TREE, ["select-drafter"], PassContext(), DrafterCatalogue())
    with pytest.raises(PlanError, match=r"there is no pass 'gard'.*did you mean guard"):
        run_passes(TREE, ["gard"], PassContext(), DrafterCatalogue())
    with pytest.raises(PlanError, match="there is no level '9'; levels are 0, 1, 2, 3, e"):
        passes_of("9")
    with pytest.raises(PlanError, match="the pass select-energy needs joules per token; plan optimise -O e"):
        run_passes(TREE, passes_of("e"), PassContext(FIGURES), DrafterCatalogue())
    with pytest.raises(PlanError, match=r"nothing decodes within 1 ms per token; the fastest takes 7\.7 ms"):
        run_passes(TREE, passes_of("e"), PassContext(ENERGY, latency=0.001), DrafterCatalogue())


def test_a_rule_that_the_plan_names_is_kept():
    plan = build_plan("m", "ngram", depth=3)
    verify = plan.one(VerifyNode)
    own = replace(plan, nodes=(*plan.nodes[:-2], replace(verify, rule=AutoRule("coupled", "token")), plan.nodes[-1]))
    (step,) = run_passes(own, ["drop-draft"], PassContext(), DrafterCatalogue())
    assert step.after.one(VerifyNode).rule == AutoRule("coupled", "token")


def test_figures_of_stages_are_missing():
    nodes = build_plan("m", "draft_model", depth=3).nodes
    stages = (DrafterNode("lookup", "ngram"), StageNode("both", ("lookup", "draft_model")), DraftNode("d", "both", 3))
    plan = Plan("x", (*nodes[:2], *stages, *nodes[3:]))
    with pytest.raises(PlanError, match="select-depth needs figures of staged"):
        run_passes(plan, ["select-depth"], PassContext(FIGURES), DrafterCatalogue())


@pytest.mark.parametrize("name", ["select-shape", "stage"])
def test_without_a_faster_tree_or_stage_nothing_changes(name):
    (step,) = run_passes(build_plan("m", "eagle", depth=4), [name], PassContext(FIGURES), DrafterCatalogue())
    assert not step.changed
