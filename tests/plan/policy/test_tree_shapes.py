"""Shapes: as written, their worth, and the best of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.tree import Shape
from slipstream.plan.policy.config import TreeConfig
from slipstream.plan.policy.tree_shapes import best_shape, best_shapes, choose, expected, parse


def trees(nodes: int, depth: int, width: int, parents: tuple[int, ...] = ()):
    """Every tree of exactly so many nodes, once: parents never fall."""
    if len(parents) == nodes:
        yield parents
        return
    for parent in range(max(parents, default=-1), len(parents)):
        shape = Shape((*parents, parent))
        if shape.depth <= depth and shape.widest <= width:
            yield from trees(nodes, depth, width, (*parents, parent))


rates = st.lists(st.lists(st.floats(0.01, 0.9), min_size=2, max_size=3), min_size=2, max_size=3)


@settings(deadline=None, max_examples=25)
@given(rates, st.integers(1, 6))
def test_the_best_shape_is_the_best_of_all(accept, nodes):
    found = best_shape(nodes, accept)
    everything = (tree for n in range(nodes + 1) for tree in trees(n, len(accept), max(map(len, accept))))
    assert expected(found, accept) == pytest.approx(max(expected(tree, accept) for tree in everything), abs=1e-12)
    assert len(found) <= nodes
    Shape(found) if found else None


def test_the_worth_of_a_tree_by_hand():
    accept = [[0.6, 0.2], [0.5, 0.1]]
    assert expected((), accept) == 0
    assert expected((-1, 0), accept) == pytest.approx(0.6 + 0.3)
    assert expected((-1, -1, 0, 0, 1), accept) == pytest.approx(0.6 + 0.2 + 0.3 + 0.06 + 0.1)
    assert expected((-1, 0, 1), accept) == pytest.approx(0.9), "nothing is known of a third level"


def test_more_nodes_are_never_worth_less():
    accept = [[0.7, 0.1, 0.05]] * 4
    worth = [expected(tree, accept) for tree in best_shapes(12, accept)]
    assert worth == sorted(worth)
    assert [len(tree) for tree in best_shapes(12, accept)] == list(range(13))


@pytest.mark.parametrize(
    ("accept", "node_cost", "step", "kind"),
    [
        ([[0.02, 0.01]] * 3, 1.0, 0.5, "plain"),
        ([[0.9, 0.001]] * 3, 0.2, 0.01, "chain"),
        ([[0.5, 0.4]] * 3, 0.02, 0.05, "tree"),
    ],
)
def test_plain_chain_or_tree_by_what_they_cost(accept, node_cost, step, kind):
    parents, speed = choose(12, accept, lambda tokens: 1 + node_cost * (tokens - 1), step)
    chain = tuple(range(-1, len(parents) - 1))
    assert kind == ("plain" if not parents else "chain" if parents == chain else "tree")
    assert speed >= 1, "plain decoding is always a choice"


def test_shapes_as_they_are_written():
    assert parse("24") == parse(24) == Shape(nodes=24, width=TreeConfig().width)
    assert parse("3x2") == Shape((-1, -1, -1, 0, 0, 1, 1, 2, 2)) == Shape.levels([3, 2])
    assert parse("-1,-1,0") == Shape((-1, -1, 0))
    assert (Shape.levels([3, 2]).depth, Shape.levels([3, 2]).widest, Shape.levels([3, 2]).size) == (2, 3, 9)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("many", "write 24"),
        ("4xx2", "write 24"),
        ("0", "it must be 1 or more"),
        ("3x0", "it must be 1 or more"),
        ("-1,2,1", "so that there is no cycle"),
        ("-1,1", "so that there is no cycle"),
        ("-2", "a parent is -1"),
    ],
)
def test_a_shape_that_is_none_is_refused_in_one_sentence(words, why):
    with pytest.raises(ValueError, match=why) as error:
        parse(words)
    assert "\n" not in str(error.value)


def test_a_shape_beyond_the_model_is_refused():
    with pytest.raises(ValueError, match="100 nodes; the model's context holds 64"):
        Shape(nodes=100, width=2).check(vocab=10, context=64)
    with pytest.raises(ValueError, match="11 candidates after one token; the model has 10 tokens"):
        Shape((-1,) * 11).check(vocab=10, context=64)
    with pytest.raises(ValueError, match="one of the two"):
        Shape()
