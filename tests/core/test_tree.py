from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.tree import Tree, padded


def test_chains_are_packed_row_after_row():
    tree = Tree.chains([2, 0, 3])
    assert tree.row.tolist() == [0, 0, 2, 2, 2]
    assert tree.parent.tolist() == [-1, 0, -1, 2, 3]
    assert tree.depth.tolist() == [0, 1, 0, 1, 2]
    assert tree.node.tolist() == [0, 1, 0, 1, 2]
    assert tree.chain.tolist() == [[0, 1, -1], [-1, -1, -1], [2, 3, 4]]
    assert tree.origin.tolist() == [0, 3, 2, 5, 6]
    assert tree.slot_depth.tolist() == [0, 0, 0, 1, 2, 1, 2, 3]


def test_a_tree_has_ancestors_and_paths():
    tree = Tree.of(1, [0] * 5, [-1, 0, 0, 1, -1])
    assert tree.paths == [[0, 2], [0, 1, 3], [4]]
    assert tree.ancestors[3].tolist() == [True, True, False, False, False]
    assert tree.depth.tolist() == [0, 1, 1, 2, 0]


@pytest.mark.parametrize(
    ("row", "parent", "word"),
    [([0, 0], [-1, 1], "parent 1"), ([0, 1], [-1, 0], "row 0"), ([5], [-1], "row 5"), ([0], [0], "parent 0")],
)
def test_what_is_no_forest_is_refused(row, parent, word):
    with pytest.raises(ValueError, match=word):
        Tree.of(2, row, parent)


def test_a_branching_row_is_no_chain():
    with pytest.raises(ValueError, match="verifies chains"):
        _ = Tree.of(1, [0, 0], [-1, -1]).chain


@given(st.lists(st.integers(-1, 8), max_size=9))
def test_depth_is_the_number_of_ancestors_and_paths_cover_every_node(wishes):
    parent = [min(p, i - 1) for i, p in enumerate(wishes)]
    tree = Tree.of(1, [0] * len(parent), parent)
    assert tree.depth.tolist() == tree.ancestors.sum(1).tolist()
    assert {i for path in tree.paths for i in path} == set(range(len(parent)))
    assert all(len(path) == tree.depth[path[-1]] + 1 for path in tree.paths)


def test_follow_takes_the_child_that_was_chosen():
    tree = Tree.of(2, [0, 0, 0, 1], [-1, -1, 1, -1])
    choice = torch.tensor([7, 9, 0, 8, 5, 0])  # after row 0: 7; after node 1 (slot 3): 8
    path = padded(tree.follow(choice.tolist(), [6, 7, 8, 3]), choice.device)
    assert path.tolist() == [[1, 2], [-1, -1]]
    assert tree.end(path).tolist() == [4, 1]
