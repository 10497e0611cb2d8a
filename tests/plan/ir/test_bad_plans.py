"""Malformed, illegal and pointless plans: one sentence with line and column."""

from __future__ import annotations

import pytest

from slipstream.engines.drafter_catalogue import DrafterCatalogue
from slipstream.plan.ir.build import build_plan
from slipstream.plan.ir.check import check_plan
from slipstream.plan.ir.json_form import from_json, to_json
from slipstream.plan.ir.library import load_plan
from slipstream.plan.ir.nodes import PlanError
from slipstream.plan.ir.parser import parse_plan

GOOD = """plan x
  target = model("smollm2-135m")
  head = eagle("smollm2-135m-eagle")
  %d = draft head depth=4
  %s = score target %d
  %v = verify block %s
  commit %v
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f:1:1: there is no plan; the first line is: plan NAME"),
        ("plann x", "f:1:1: 'plann' stands where the word plan belongs"),
        ("plan x version=9", "f:1:16: the plan has version 9; this slipstream reads versions up to 1"),
        ("plan x\n  t = model(", "f:2:13: the end of the line stands where a value belongs"),
        ('plan x\n  t = "abc', "f:2:7: the string is not closed"),
        ("plan x\n  t = $", "f:2:7: '$' begins no word"),
        ("plan x\n  what", "f:2:3: 'what' begins no line"),
        (
            "plan x\n  %d = drft h",
            "f:2:8: there is no operation 'drft'; one of draft, guard, score, verify, route; did you mean draft?",
        ),
        (
            "plan x\n  %d = draft h dpth=3",
            "f:2:16: draft has no 'dpth'; it takes depth, shape, overlap; did you mean depth?",
        ),
        ("plan x\n  %d = draft h depth=deep", "f:2:16: depth is a number, or adaptive(0..8)"),
        ('plan x\n  t = model("a", dtype=3)', "f:2:18: dtype of model is 3; it must be str"),
        ('plan x\n  t = model("a", dtype=a8, dtype=a8)', "f:2:28: dtype is given twice"),
        ("plan x\n  t = model()", 'f:2:7: model takes a "string" first'),
        ("plan x\n  %v = verify 3 %s", "f:2:15: a rule is a name, or auto(seeded=NAME, else=NAME)"),
    ],
)
def test_malformed_text(text, says):
    with pytest.raises(PlanError) as error:
        parse_plan(text, "f")
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("= eagle(", "= eagel(", "f:3:3: drafter head: there is no drafter 'eagel'; one of "),
        ('eagle")', 'eagle", vocb=3)', "f:3:3: drafter head: eagle has no option 'vocb'; it takes "),
        ("= eagle(", "= none(", "f:3:3: drafter head: none drafts nothing"),
        (
            '135m")',
            '360m")\n  # comment',
            "f:4:3: drafter head: it was trained for smollm2-135m; the target is smollm2-360m",
        ),
        (
            "draft head",
            "draft hed",
            "f:4:3: draft %d: there is no drafter or stage 'hed' before it; did you mean head?",
        ),
        ("draft head", "draft target", "f:4:3: draft %d: 'target' is a model, and a drafter or stage belongs there"),
        ("depth=4", "depth=0", "f:4:3: draft %d: the depth is 0"),
        ("depth=4", "depth=adaptive(1..4)", "f:4:3: draft %d: the depth is adaptive from 1"),
        ("depth=4", "depth=adaptive(0..0)", "f:4:3: draft %d: the depth is adaptive(0..0), which is plain decoding"),
        ("depth=4", "depth=adaptive(0..4, policy=wise)", "f:4:3: draft %d: there is no policy called 'wise'"),
        ("depth=4", "depth=adaptive(0..4) shape=8", "f:4:3: draft %d: a shape is drafted in every cycle"),
        ("depth=4", "depth=4 shape=8", "f:6:3: verify %v: the rule block verifies chains, and the draft is a tree"),
        ("verify block", "verify blok", "f:6:3: verify %v: there is no rule called 'blok'"),
        ("verify block", "verify auto(seeded=greedy)", "f:6:3: verify %v: the rule greedy is for temperature 0"),
        (" %d\n  %v", "\n  %v", "f:4:3: draft %d: it is never used"),
        ("  commit %v\n", "", "f:6:3: a plan ends with commit"),
        ("%s = score", "%d = score", "f:5:3: score %d: the name 'd' is taken by an earlier draft"),
        ("  commit", "  %w = verify block %s\n  commit", "f:7:3: verify %w: it is never used"),
        ("4\n  %s = score target %d", "adaptive(0..4)\n  %g = guard %d\n  %s = score target %g", "f:5:3: guard %g: "),
        ("4\n  %s = score target %d", "4 shape=8\n  %g = guard %d\n  %s = score target %g", "f:5:3: guard %g: "),
        ('135m")', '135m", tensor_parallel=0)', "f:2:3: model target: tensor_parallel is 0; it must be 1 or more"),
    ],
)
def test_illegal_plans(old, new, says):
    assert old in GOOD
    text = GOOD.replace(old, new)
    with pytest.raises(PlanError) as error:
        check_plan(parse_plan(text, "f"), DrafterCatalogue(), "f")
    assert str(error.value).startswith(says)


ROUTE = """plan x
  small = model("a")
  large = model("b")
  %s = score large
  %v = verify auto(seeded=coupled, else=block) %s
  %r = route small %v level=token threshold=0.4 lossy=true
  commit %r
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (" lossy=true", "", "f:6:3: route %r: a route is lossy; write lossy=true if that is wanted"),
        ("0.4", "1.5", "f:6:3: route %r: threshold is 1.5; it must be between 0 (the small model alone) and 1"),
        ("0.4", "much", "f:6:35: threshold of route is 'much'; it must be float"),
        (
            "level=token",
            "level=tokn",
            "f:6:3: route %r: level is tokn; it must be request or token; did you mean token",
        ),
        ("level=token", "level=request score=men", "f:6:3: route %r: there is no score called 'men'"),
        ("level=token", "level=request score=quantile(q=2)", "f:6:3: route %r: q of the score quantile is 2"),
        ("level=token", "score=3", "f:6:23: a score is a name, or NAME(key=value)"),
        ("level=token", "level=token score=entropy", "f:6:3: route %r: at the level token the small model's largest"),
        ("route small", "route large", "f:2:3: model small: it is never used"),
        ("verify auto(seeded=coupled, else=block)", "verify block", "f:6:3: route %r: at the level token the route is"),
        ('"a")', '"a", context=9)', "f:6:3: route %r: at the level token the model small drafts, and takes no"),
        ("commit %r", "commit %v", "f:6:3: route %r: it is never used"),
        (
            "  %s = score large",
            "  n = ngram()\n  %d = draft n\n  %s = score large %d",
            "f:8:3: route %r: at the level token the small model drafts, so the plan has no draft",
        ),
    ],
)
def test_illegal_routes(old, new, says):
    assert old in ROUTE
    check_plan(parse_plan(ROUTE), DrafterCatalogue())
    with pytest.raises(PlanError) as error:
        check_plan(parse_plan(ROUTE.replace(old, new), "f"), DrafterCatalogue(), "f")
    assert str(error.value).startswith(says)


def test_a_route_from_a_model_to_itself():
    text = ROUTE.replace('  small = model("a")\n', "").replace("route small", "route large")
    with pytest.raises(PlanError, match="it routes from large to itself; name two models"):
        check_plan(parse_plan(text))


def test_a_good_plan_passes():
    plan = parse_plan(GOOD)
    assert check_plan(plan, DrafterCatalogue()) is plan


def test_a_tree_needs_candidates_that_drafter_and_rule_have_in_common():
    plan = build_plan("m", "ngram", shape=8, verify="spectr")
    with pytest.raises(PlanError, match=r"the rule spectr cannot verify a tree of ngram.*with ngram: .*chosen"):
        check_plan(plan, DrafterCatalogue())


@pytest.mark.parametrize(
    ("drafter", "draft", "says"),
    [
        ("eagle()", "depth=3", "f:4:3: draft %d: eagle drafts from what the target has computed"),
        ("ngram()", "depth=3 shape=8", "f:4:3: draft %d: drafts that overlap with the target's pass are chains"),
    ],
)
def test_what_cannot_overlap(drafter, draft, says):
    text = f'plan x\n  t = model("a")\n  h = {drafter}\n  %d = draft h {draft} overlap=true\n'
    text += "  %s = score t %d\n  %v = verify auto(seeded=coupled, else=no_replace) %s\n  commit %v\n"
    with pytest.raises(PlanError) as error:
        check_plan(parse_plan(text, "f"), DrafterCatalogue(), "f")
    assert str(error.value).startswith(says)


def test_bad_files(tmp_path):
    with pytest.raises(PlanError, match=r"there is no plan 'eagl'; a plan is a file or one of .*; did you mean eagle"):
        load_plan("eagl")
    (tmp_path / "a.json").write_text('{"name": "x",\n ]')
    with pytest.raises(PlanError, match=r"a.json:2:2: the JSON is malformed"):
        load_plan(tmp_path / "a.json")
    (tmp_path / "b.plan").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="it is no text"):
        load_plan(tmp_path / "b.plan")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 9}, "the plan has version 9"),
        ({"nodes": 3}, 'with "name", "version" and "nodes"'),
        ({"nodes": [{"node": "what"}]}, "one of model, drafter, stage, draft"),
        ({"nodes": [{"node": "commit", "verdit": "v"}]}, "the node commit has no 'verdit'; it has"),
        ({"nodes": [{"node": "commit"}]}, "a node commit has no 'verdict', which it needs"),
    ],
)
def test_bad_json(change, says):
    with pytest.raises(PlanError, match=says):
        from_json(to_json(parse_plan(GOOD)) | change)
