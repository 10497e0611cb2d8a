"""Trees on a GPU's kernels against the host's own: how they grow, which path is accepted, and where it is put."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.core.law import Dense, Law, OneHot
from slipstream.core.noise import Noise, Purpose, Site, fold, race, uniform
from slipstream.core.tree import Shape, Siblings, Tree
from slipstream.core.types import Budget, Draft, Request, Row
from slipstream.core.verify.match import keep_matches
from slipstream.core.verify.tree import Chosen
from slipstream.drafters.levels.growth import DraftGrowth, plan_for
from slipstream.kernels.gpu import sample as draw
from slipstream.kernels.gpu.attention import Layout
from slipstream.kernels.gpu.cycle import CycleControl, chain_layout
from slipstream.kernels.gpu.path import CacheBundle, CommittedTokens, carry, follow, offer, report
from slipstream.kernels.gpu.sample import LawBuffers, SamplingInputs, choose
from slipstream.kernels.gpu.tree import CandidatePool, PackedTree, open_level, plant, rank

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, CHUNK = 40, 2


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of a small vocabulary."""
    monkeypatch.setattr(draw, "BLOCK", 16)


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long, device=DEVICE)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long, device=DEVICE)


def control(depth: list[int], nodes: list[int], width: list[int], start: list[int]) -> CycleControl:
    rows = list(range(len(depth)))
    stream = torch.randint(-(2**62), 2**62, (len(depth),)).to(DEVICE)
    places = ints([7 - r for r in rows]), ints([3 + r for r in rows])
    none = [0] * len(rows)
    return CycleControl(
        *(stream, ints(start), ints(depth), *places),
        *map(ints, ([30 + r for r in rows], nodes, width, none, [7 - r for r in rows], depth)),
    )


def wishes(told: CycleControl, warm: float) -> SamplingInputs:
    each = torch.full((len(told.start),), warm, device=DEVICE)
    return SamplingInputs(each, told.stream, told.start, told.depth, torch.zeros_like(each))


def grown(
    pool: CandidatePool, told: CycleControl, logits: list[torch.Tensor], ids: torch.Tensor, nodes: int
) -> tuple[PackedTree, Layout]:
    for level, some in enumerate(logits):
        if level:
            open_level(pool, level - 1, told)
        rank(pool, level, some, ids, wishes(told, 0.0), told, race=False)
    tree = PackedTree(*zeros(3, pool.rows, nodes + 1))
    layout = chain_layout(pool.rows, nodes + 1, CHUNK, torch.device(DEVICE))
    plant(pool, told, tree, layout)
    return tree, layout


def expected(r: int, told: CycleControl, logits: list[torch.Tensor], ids: torch.Tensor, width: int) -> DraftGrowth:
    """The plan of one row, its laws taken from the same logits: slot j of a level is the j-th node it opens."""
    shape = Shape(nodes=max(1, int(told.nodes[r])), width=max(1, int(told.width[r])))
    plan = plan_for(Row(Request([1])), Budget(max(0, int(told.depth[r])), 0.0, shape, Siblings.CHOSEN), VOCAB)
    level = [-1] if int(told.depth[r]) > 0 and int(told.nodes[r]) else []
    for depth, some in enumerate(logits, 1):
        laws = [some[r * (width if depth > 1 else 1) + j].cpu().softmax(-1).topk(plan.width) for j in range(len(level))]
        counts = plan.candidate_counts([(node, law.values.tolist()) for node, law in zip(level, laws, strict=True)])
        for node, law, count in zip(level, laws, counts, strict=True):
            for chance, at in list(zip(law.values.tolist(), law.indices.tolist(), strict=True))[:count]:
                plan.add(node, int(ids[at]), chance)
        level = plan.nodes_to_open(depth)
    return plan


@pytest.mark.parametrize("sure", [False, True], ids=["spread", "sure"])
def test_a_tree_grows_as_the_plan_of_the_host_says(sure):
    """Rows of different budgets: a tree, a smaller one, a chain, a plain row, and one that only fills up the pass."""
    torch.manual_seed(5)
    rows, width, depth, nodes = 5, 3, 4, 9
    told = control([4, 3, 3, 0, -1], [9, 5, 3, 4, 0], [3, 2, 1, 3, 0], [6, 140, 9, 20, 0])
    ids = torch.randperm(97)[:VOCAB].sort().values.to(DEVICE)
    logits = [torch.randn(rows * (width if level else 1), VOCAB).to(DEVICE) * 2 for level in range(depth)]
    if sure:  # a token of probability one: its children tie with it, and parents must win
        for some in logits:
            some[:, 11] += 30.0
    pool = CandidatePool(rows, width, depth, VOCAB, CHUNK, torch.device(DEVICE))
    tree, layout = grown(pool, told, logits, ids, nodes)
    for r in range(rows):
        plan = expected(r, told, logits, ids, width)
        kept = plan.kept() if int(told.nodes[r]) else []
        number = {node: n for n, node in enumerate(kept)} | {-1: -1}
        assert tree.token[r, 1 : 1 + len(kept)].tolist() == [plan.token[node] for node in kept]
        assert tree.parent[r, 1:].tolist() == [number[plan.parent[node]] for node in kept] + [-2] * (nodes - len(kept))
        assert int(pool.total[r]) == len(kept)
        check_layout(r, tree, layout, told, len(kept), nodes + 1)


def check_layout(r: int, tree: PackedTree, layout: Layout, told: CycleControl, drafted: int, slots: int) -> None:
    start, live = int(told.start[r]), int(told.depth[r]) >= 0
    line = slice(r * slots, (r + 1) * slots)
    real = drafted + live
    assert layout.place[line].tolist() == [start - 1 + n for n in range(real)] + [-1] * (slots - real)
    counts = layout.count.view(-1, -(-slots // CHUNK))[r].tolist()
    assert sum(counts) == real
    assert all(count == CHUNK for count in counts[: real // CHUNK])
    assert layout.row[line].tolist() == [int(told.row[r])] * slots
    assert int(tree.token[r, 0]) == 30 + r
    for n in range(drafted):
        path, node = [], n
        while node >= 0:
            path.append(node)
            node = int(tree.parent[r, node + 1])
        at = r * slots + 1 + n
        assert int(tree.far[r, n + 1]) == len(path)
        assert int(layout.position[at]) == start - 1 + len(path)
        assert int(layout.limit[at]) == int(layout.base[at]) == start
        assert int(layout.bits[at, 0]) == sum(1 << node for node in path)
        assert layout.bits[at, 1:].tolist() == [0, 0, 0]


def test_open_nodes_see_the_slots_they_follow_and_no_others():
    torch.manual_seed(6)
    rows, width, depth = 2, 3, 4
    told = control([4, 2], [12, 12], [3, 2], [6, 140])
    pool = CandidatePool(rows, width, depth, VOCAB, CHUNK, torch.device(DEVICE))
    ids, opened = torch.arange(VOCAB, device=DEVICE), []
    for level in range(depth - 1):
        logits = torch.randn(rows * (width if level else 1), VOCAB).to(DEVICE)
        rank(pool, level, logits, ids, wishes(told, 0.0), told, race=False)
        layout = open_level(pool, level, told)
        opened.append((pool.node.clone(), pool.source.clone(), pool.word.clone()))
        for r in range(rows):
            count = (width if r == 0 else 2) if level + 1 < int(told.depth[r]) else 0
            line = slice(r * width, (r + 1) * width)
            first = int(told.start[r]) - 1 + level * width
            assert layout.place[line].tolist() == [first + j for j in range(count)] + [-1] * (width - count)
            assert sum(layout.count.view(rows, -1)[r].tolist()) == count
            assert layout.row[line].tolist() == [int(told.head_row[r])] * width
            for j in range(count):
                at = r * width + j
                seen, slot, above = 0, at, level
                while above >= 0:
                    seen |= 1 << above * width + slot - r * width
                    node, source, _ = opened[above]
                    parent = int(pool.parent[r, node[slot]])
                    if above:
                        assert parent == int(opened[above - 1][0][source[slot]]), "it stands after another node"
                    else:
                        assert (parent, int(source[slot])) == (-1, r)
                    slot, above = int(source[slot]), above - 1
                assert int(layout.bits[at, 0]) == seen
                assert int(pool.word[at]) == int(pool.token[r, pool.node[at]])
                assert int(layout.limit[at]) == int(layout.base[at]) == int(told.start[r]) - 1
                assert int(layout.position[at]) == int(told.start[r]) - 1 + level


def test_candidates_under_coupling_are_the_first_of_the_drafts_race():
    torch.manual_seed(7)
    told = control([2, 2], [3, 3], [3, 3], [6, 140])
    logits, ids = torch.randn(2, VOCAB).to(DEVICE), torch.arange(VOCAB, device=DEVICE) * 2
    pool = CandidatePool(2, 3, 2, VOCAB, CHUNK, torch.device(DEVICE))
    rank(pool, 0, logits, ids, wishes(told, 0.7), told, race=True)
    for r in range(2):
        key = fold(told.stream[r].cpu(), told.start[r].cpu(), torch.tensor(0), torch.tensor(Purpose.FIELD))
        time = -torch.log(uniform(fold(key, ids.cpu()))) / (logits[r].cpu() / 0.7).double().softmax(0)
        assert pool.token[r, :3].tolist() == ids.cpu()[time.argsort()[:3]].tolist()
        weight = (1 / time).log().log_softmax(0).sort(descending=True).values[:3]
        torch.testing.assert_close(pool.weight[r, :3].cpu().double(), weight, atol=1e-5, rtol=1e-5)


class Keyed(Noise):
    """The noise of `core`, for rows that are keys and lengths alone."""

    def __init__(self, told: CycleControl) -> None:
        self._stream, self._start = told.stream.cpu(), told.start.cpu()

    def flip(self, prob: torch.Tensor, site: Site) -> torch.Tensor:
        raise AssertionError("nothing is flipped")

    def draw(self, law: Law, site: Site, purpose: Purpose) -> torch.Tensor:
        number = torch.tensor(int(purpose))
        pairs = zip(site.row, site.node, strict=True)
        return race(law, torch.stack([fold(self._stream[r], self._start[r], n, number) for r, n in pairs]))


PARENTS = [[-1, -1, 0, 0, 1, 2, 2, 5], [-1, 0, 1, 2], [], [-1, -1, -1, 1, 3, 3]]
TOKENS = [[4, 9, 1, 2, 3, 7, 8, 5], [5, 5, 5, 5], [], [1, 2, 3, 4, 5, 6]]
SLOTS, LEVELS = 9, 5


def planted() -> tuple[PackedTree, Draft, list[int]]:
    """Four trees as kernels see them, and as the host does; and where the host's slots stand there."""
    tree = PackedTree(*zeros(3, 4, SLOTS))
    tree.parent.fill_(-2)
    row, parent, token, first = list[int](), list[int](), list[int](), 0
    slots = [r * SLOTS for r in range(4)]
    for r, (above, words) in enumerate(zip(PARENTS, TOKENS, strict=True)):
        for n, (p, word) in enumerate(zip(above, words, strict=True)):
            tree.token[r, n + 1], tree.parent[r, n + 1] = word, p
            tree.far[r, n + 1] = 1 + (int(tree.far[r, p + 1]) if p >= 0 else 0)
            row, parent, token = [*row, r], [*parent, first + p if p >= 0 else -1], [*token, word]
            slots.append(r * SLOTS + 1 + n)
        first += len(above)
    words = torch.tensor(token)
    return tree, Draft(Tree.of(4, row, parent), words, OneHot(words, VOCAB), Siblings.CHOSEN), slots


def likely(tree: PackedTree, slots: int, boost: float) -> torch.Tensor:
    """Logits under which what is drafted is likely."""
    logits = torch.randn(4 * slots, VOCAB).to(DEVICE)
    for r in range(4):
        for n in range(1, slots):
            if int(tree.parent[r, n]) > -2:
                logits[r * slots + 1 + int(tree.parent[r, n]), tree.token[r, n]] += boost
    return logits


def laws(logits: torch.Tensor) -> LawBuffers:
    made = LawBuffers(*logits.shape, logits.device)
    made.logits.copy_(logits)
    return made


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rule", ["greedy", "coupled", "chosen"])
def test_the_path_is_the_one_that_the_rule_of_core_accepts(rule, seed):
    torch.manual_seed(seed)
    tree, draft, slots = planted()
    warm = 0.0 if rule == "greedy" else 0.8
    told = control([5, 5, 0, 5], [8] * 4, [3] * 4, [6, 140, 9, 20])
    law, wish, found = laws(likely(tree, SLOTS, 5.0)), wishes(told, warm), tuple(zeros(3, 4))
    choice, path = zeros(4, SLOTS), zeros(4, LEVELS)
    purpose = Purpose.FIELD if rule == "coupled" else Purpose.EMIT
    choose(law, wish, choice, SLOTS, purpose, rule == "coupled", tree.far.view(-1))
    if rule == "chosen":
        offer(law, tree, told, wish, (zeros(4), zeros(4, SLOTS)), found, path)
        target = Dense((law.logits[slots].cpu() / warm).softmax(-1))
        wanted = Chosen().verify(draft, target, Keyed(told))
    else:
        follow(choice, tree, told, law.best, found, path)
        wanted = keep_matches(draft, own_choices(law.logits.cpu(), told, tree.far.view(-1).cpu(), slots, warm))
    first = [0, 8, 12, 12]
    paths = [[i - first[r] for i in line if i >= 0] for r, line in enumerate(wanted.path.tolist())]
    assert [[n for n in line if n >= 0] for line in path.tolist()] == paths
    assert found[0].tolist() == list(map(len, paths))
    assert found[1].tolist() == wanted.token.tolist()
    assert found[2].tolist() == [1] * 4
    assert max(map(len, paths)) > 1, "nothing to see"


def own_choices(
    logits: torch.Tensor, told: CycleControl, far: torch.Tensor, slots: list[int], warm: float
) -> torch.Tensor:
    """The target's choice at every slot, in the host's order."""
    drawn = logits[slots].argmax(-1)
    for i, slot in enumerate(slots if warm else []):
        r = slot // SLOTS
        key = fold(told.stream[r].cpu(), told.start[r].cpu() + far[slot], torch.tensor(0), torch.tensor(Purpose.FIELD))
        drawn[i] = race(Dense((logits[slot : slot + 1] / warm).softmax(-1)), key[None])[0]
    return drawn


def test_a_place_without_a_law_is_told_where_it_was_reached():
    tree, _, _ = planted()
    told = control([5, 5, 0, 5], [8] * 4, [3] * 4, [6, 140, 9, 20])
    choice, best, found, path = zeros(4, SLOTS), torch.zeros(4 * SLOTS, device=DEVICE), tuple(zeros(3, 4)), zeros(4, 5)
    choice[0, 0], choice[0, 1], choice[3, 0] = 4, 2, 2
    best[4], best[3 * SLOTS + 1] = float("nan"), float("inf")  # reached by row 0; never by row 3
    follow(choice, tree, told, best, found, path)
    assert found[2].tolist() == [0, 1, 1, 1]
    assert path[0].tolist() == [0, 3, -1, -1, -1]


def test_the_accepted_path_moves_to_consecutive_places_and_nothing_else_does():
    torch.manual_seed(8)
    told = control([5] * 4, [8] * 4, [3] * 4, [6, 14, 9, 2])
    held = [torch.randn(8, 2, 32, 12).to(DEVICE) for _ in range(3)]
    before = [one.clone() for one in held]
    path = ints([1, 3, 4, 7, 8, 0, 1, 2, -1, -1, -1, -1, -1, -1, -1, 2, 5, -1, -1, -1]).view(4, 5)
    found = ints([5, 3, 0, 2]), ints([0] * 4), ints([1] * 4)
    carry(CacheBundle(held), told, found, path)
    for mine, old in zip(held, before, strict=True):
        wanted = old.clone()
        for r in range(4):
            start, row = int(told.start[r]), int(told.row[r])
            for n, node in enumerate(path[r].tolist()):
                if node >= 0:
                    wanted[row, :, start + n] = old[row, :, start + node]
        assert torch.equal(mine, wanted)


def test_the_host_and_the_head_are_told_what_was_committed():
    tree, _, _ = planted()
    told = control([5, 5, -1, 5], [8] * 4, [3] * 4, [6, 14, 9, 2])
    path = ints([0, 2, 5, -1, -1, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1]).view(4, 5)
    found, total = (ints([3, 1, 0, 0]), ints([21, 22, 23, 24]), ints([1, 1, 1, 0])), ints([8, 4, 0, 6])
    layout = chain_layout(4, LEVELS + 1, CHUNK, torch.device(DEVICE))
    said = CommittedTokens(zeros(24), zeros(24), layout, zeros(4))
    result = zeros(4, 2 + 2 * SLOTS + LEVELS)
    report(told, tree, total, found, path, said, result)
    assert said.following.view(4, 6)[:2, :4].tolist() == [[4, 1, 7, 21], [5, 22, 22, 22]]
    assert said.fused.view(4, 6).tolist() == [
        [0, 1, 3, 6, 0, 0], [9, 10, 9, 9, 9, 9], [18] * 6, [27] * 6
    ]  # fmt: skip
    assert layout.place.view(4, 6).tolist() == [
        [5, 6, 7, 8, -1, -1], [13, 14, -1, -1, -1, -1], [-1] * 6, [1, -1, -1, -1, -1, -1]
    ]  # fmt: skip
    assert layout.limit.view(4, 6)[0].tolist() == [6, 7, 8, 9, 0, 0]
    assert layout.count.view(4, 3).tolist() == [[2, 2, 0], [2, 0, 0], [0, 0, 0], [1, 0, 0]]
    assert said.end.tolist() == [3, 7, 12, 18]
    tips = [7, 5, 0, int(tree.token[3, 0])]
    assert (told.start.tolist(), told.last.tolist(), told.before.tolist()) == (
        [10, 16, 9, 3], [21, 22, 32, 24], tips
    )  # fmt: skip
    assert (told.left.tolist(), told.depth.tolist()) == ([3, 4, 5, 3], [2, 3, -1, 2]), "one token is always left"
    line = result[0].tolist()
    assert line[:4] == [3, 21, 1, 8]
    assert (line[4:12], line[12:20], line[20:]) == (TOKENS[0], PARENTS[0], path[0].tolist())


@pytest.mark.parametrize("words", [(), pytest.param(("--whole",), marks=pytest.mark.slow)])
def test_what_is_interpreted_here_is_compiled_elsewhere(words, tmp_path):
    """The interpreter takes what a compiler does not: a name that changes its shape in a branch, say."""
    bare = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).parents[2] / "compiled.py"
    environment = {**bare, "TRITON_CACHE_DIR": str(tmp_path)}
    line = [sys.executable, script, *words]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "59 kernels\n"
