"""Growing drafts: what the callback is told, what a shape gets, and what no draft may do."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from slipstream.audit.tables.enumeration import Scripted, Universe
from slipstream.core.law import Dense, OneHot
from slipstream.core.noise import CounterNoise
from slipstream.core.sampling import Sampling
from slipstream.core.shaping import law_at, places
from slipstream.core.tree import Shape, Siblings
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.levels.grow import grow, locate
from slipstream.drafters.ngram import NGram
from slipstream.models.run.table_model import Table

TABLE = Table.random(5, 2, seed=3, zeros=0.0)
DRAWN = [Siblings.IID, Siblings.DISTINCT]


def rows(count: int, ends=()) -> list[Row]:
    return [Row(Request([1, i % 5], Sampling(seed=i), ends=frozenset(ends))) for i in range(count)]


class Teller:
    """Laws of a table, and a record of what was asked."""

    def __init__(self, some, table=TABLE):
        self.rows, self.table, self.asked = some, table, []

    def __call__(self, tree, token, slots):
        self.asked.append((tree.lists, token.tolist(), slots))
        everywhere = places(self.rows, tree, token.tolist())
        where = [everywhere[slot] for slot in slots]
        return law_at(torch.stack([self.table.law([*row.tokens, *path]) for row, path in where]).log(), where)


def drafted(some, budget, table=TABLE):
    teller = Teller(some, table)
    noise = CounterNoise(some, [False] * len(some))
    return grow(some, budget, noise, teller, table.vocab), teller


@pytest.mark.parametrize("how", Siblings)
@pytest.mark.parametrize("shape", [Shape.levels([3, 2]), Shape((-1, -1, 0, 2)), Shape(nodes=9, width=3)])
def test_the_callback_sees_a_tree_that_grows_at_its_end(how, shape):
    some = rows(4)
    _, teller = drafted(some, [Budget(3, shape=shape, siblings=how)] * 4)
    lists, token, slots = teller.asked[0]
    assert (lists, token, slots) == ([], [], [0, 1, 2, 3])
    for (before, early, _), (lists, token, slots) in zip(teller.asked, teller.asked[1:], strict=False):
        assert lists[: len(before)] == before
        assert token[: len(early)] == early
        assert slots == list(range(4 + len(before), 4 + len(lists)))


@pytest.mark.parametrize("how", Siblings)
def test_a_static_shape_is_filled_and_cut_at_the_depth(how):
    shape = Shape((-1, -1, 0, 0, 2))
    some = rows(6)
    draft, _ = drafted(some, [Budget(depth, shape=shape, siblings=how) for depth in (0, 1, 2, 3, 3, 3)])
    sizes = [sum(r == row for r, _ in draft.tree.lists) for row in range(6)]
    assert sizes[:2] == [0, 2]
    assert sizes[2] == 4
    assert sizes[3:] == [5, 5, 5]
    assert int(draft.tree.depth.max()) == 2
    draft.law.check()
    assert bool((draft.law.prob(draft.token) > 0).all())


@pytest.mark.parametrize("how", Siblings)
@pytest.mark.parametrize("nodes", [1, 4, 12])
def test_a_grown_tree_keeps_to_its_nodes_width_and_depth(how, nodes):
    some = rows(10)
    draft, teller = drafted(some, [Budget(3, shape=Shape(nodes=nodes, width=2), siblings=how)] * 10)
    for r in range(10):
        assert 1 <= sum(row == r for row, _ in draft.tree.lists) <= nodes
    assert max(map(len, draft.tree.children)) <= 2
    assert int(draft.tree.depth.max()) <= 2
    assert len(teller.asked) <= 3, "one call a level"


def test_chosen_best_first_keeps_the_likeliest_paths_of_all():
    """Against every path there is; a wide beam, so that nothing is out of sight."""
    (row,) = some = rows(1)
    draft, _ = drafted(some, [Budget(3, shape=Shape(nodes=10, width=5), siblings=Siblings.CHOSEN)])
    chances = {}
    for depth in (1, 2, 3):
        for path in product(range(5), repeat=depth):
            chance = 1.0
            for i, token in enumerate(path):
                chance *= float(TABLE.law([*row.tokens, *path[:i]])[token])
            chances[path] = chance
    best = sorted(chances.values(), reverse=True)[:10]
    paths = [path for _, path in places(some, draft.tree, draft.token.tolist())[1:]]
    assert sorted((chances[tuple(path)] for path in paths), reverse=True) == pytest.approx(best)
    assert isinstance(draft.law, OneHot)
    torch.testing.assert_close(draft.chance[0].double(), TABLE.law(row.tokens).max(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("how", DRAWN)
@pytest.mark.parametrize("shape", [Shape.levels([3, 2]), Shape(nodes=8, width=3)])
def test_no_drawn_node_is_ever_dropped(how, shape):
    """Every draw the noise was asked for stands in the draft."""
    some = rows(8)

    class Counting(CounterNoise):
        draws = 0

        def draw(self, law, *rest, **more):
            Counting.draws += len(law)
            return super().draw(law, *rest, **more)

    draft = grow(some, [Budget(3, shape=shape, siblings=how)] * 8, Counting(some, [False] * 8), Teller(some), 5)
    assert len(draft.tree) == Counting.draws > 8


@pytest.mark.parametrize("how", DRAWN)
def test_no_number_is_drawn_twice(how):
    universes = [Universe([]) for _ in range(3)]
    some = rows(3)
    shape = Shape.levels([2, 2])
    grow(some, [Budget(2, shape=shape, siblings=how)] * 3, Scripted(universes, [(2,)] * 3), Teller(some), 5)
    assert not any(universe.faults for universe in universes)
    assert all(universe.keys for universe in universes)


def test_the_law_of_a_later_sibling_knows_the_earlier_ones():
    some = rows(30)
    draft, _ = drafted(some, [Budget(1, shape=Shape((-1, -1, -1)), siblings=Siblings.DISTINCT)] * 30)
    assert isinstance(draft.law, Dense)
    for nodes in draft.tree.children[:30]:
        tokens = draft.token[nodes].tolist()
        assert len(set(tokens)) == 3
        for i, node in enumerate(nodes):
            assert float(draft.law.dense()[node][tokens[:i]].sum()) == 0


def test_where_fewer_tokens_are_possible_than_wanted_all_of_them_are_drawn():
    probs = torch.zeros(25, 5, dtype=torch.float64)
    probs[:, 1], probs[:, 3] = 0.25, 0.75
    some = rows(5)
    for how in (Siblings.DISTINCT, Siblings.CHOSEN):
        draft, _ = drafted(some, [Budget(1, shape=Shape((-1,) * 4), siblings=how)] * 5, Table(probs, 2))
        assert [sorted(draft.token[nodes].tolist()) for nodes in draft.tree.children[:5]] == [[1, 3]] * 5


def test_what_follows_a_token_drawn_twice_follows_the_first_of_them():
    probs = torch.zeros(25, 5, dtype=torch.float64)
    probs[:, 2] = 1.0
    some = rows(2)
    draft, _ = drafted(some, [Budget(2, shape=Shape.levels([2, 1]), siblings=Siblings.IID)] * 2, Table(probs, 2))
    assert [len(nodes) for nodes in draft.tree.children[:2]] == [2, 2]
    assert sorted(len(nodes) for nodes in draft.tree.children[2:]) == [0, 0, 0, 0, 0, 0, 2, 2]


@pytest.mark.parametrize("how", [None, *Siblings])
def test_nothing_follows_an_end_token_nor_an_unlikely_law(how):
    shape = None if how is None else Shape.levels([2, 2])
    draft, _ = drafted(rows(20, ends=(1, 2)), [Budget(2, shape=shape, siblings=how)] * 20)
    inner = draft.token[draft.tree.parent[draft.tree.parent >= 0]].tolist()
    assert not {1, 2} & set(inner)
    sure, _ = drafted(rows(20), [Budget(2, 0.99, shape, how)] * 20)
    assert len(sure.tree) == 0


def test_rows_of_other_shapes_in_one_batch_change_nothing():
    shapes = [None, Shape.levels([2, 2]), Shape(nodes=7, width=3), Shape((-1, 0, 0))]
    budget = [Budget(3, shape=shape, siblings=Siblings.DISTINCT) for shape in shapes]
    together, _ = drafted(rows(4), budget)
    for r in range(4):
        alone = grow([rows(4)[r]], [budget[r]], CounterNoise([rows(4)[r]], [False]), Teller([rows(4)[r]]), 5)
        assert alone.token.tolist() == together.token[together.tree.row == r].tolist()


def test_nodes_are_found_again_in_the_tree_that_was_opened():
    some = rows(3)
    draft, teller = drafted(some, [Budget(3, shape=Shape(nodes=6, width=3), siblings=Siblings.CHOSEN)] * 3)
    lists, token, _ = teller.asked[-1]
    from slipstream.core.tree import Tree

    tree = Tree.of(3, [r for r, _ in lists], [p for _, p in lists])
    found = locate(draft, tree, torch.tensor(token))
    whole = places(some, draft.tree, draft.token.tolist())[3:]
    opened = places(some, tree, token)[3:]
    assert any(i >= 0 for i in found)
    assert all(opened[i] == place for i, place in zip(found, whole, strict=True) if i >= 0)
    inner = {p for _, p in draft.tree.lists if p >= 0}
    assert all(found[i] >= 0 for i in inner)


def test_what_cannot_be_is_refused():
    some = rows(1)
    with pytest.raises(ValueError, match="verifies chains"):
        drafted(some, [Budget(2, shape=Shape(nodes=4, width=2))])
    with pytest.raises(ValueError, match="6 candidates after one token; the model has 5 tokens"):
        drafted(some, [Budget(2, shape=Shape(nodes=9, width=6), siblings=Siblings.IID)])


def test_several_matches_of_an_n_gram_become_a_tree():
    row = Row(Request([7, 1, 2, 7, 1, 3, 7, 1, 2, 9, 7, 1], Sampling(seed=0)))
    ngram = NGram(10)
    ngram.open([row])

    def paths(shape):
        draft = ngram.propose([row], [Budget(3, shape=shape, siblings=Siblings.CHOSEN)], CounterNoise([row], [False]))
        return [list(path) for _, path in places([row], draft.tree, draft.token.tolist())[1:]]

    assert paths(Shape(nodes=6, width=3)) == [[2], [2, 9], [2, 9, 7], [3], [3, 7], [3, 7, 1]]
    assert paths(Shape(nodes=4, width=3)) == [[2], [2, 9], [2, 9, 7], [3]]
    assert paths(Shape((-1, -1, 0))) == [[2], [2, 9], [3]]
    assert paths(Shape(nodes=9, width=1)) == [[2], [2, 9], [2, 9, 7]]
    with pytest.raises(ValueError, match="verifies chains"):
        ngram.propose([row], [Budget(3, shape=Shape(nodes=4, width=2))], CounterNoise([row], [False]))
