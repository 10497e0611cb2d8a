"""Whole cycles that draft trees on the device: what they emit, what they accept, and what they leave in the caches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

import blocks
from heads import random_head
from slipstream.core.device import DraftSize
from slipstream.core.interfaces import Drafter, Policy
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Draft, Request, Row, Verdict
from slipstream.drafters.eagle.drafter import Eagle
from slipstream.drafters.eagle.network import EagleConfig
from slipstream.drafters.none import NoDrafter
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.captured import sizes
from slipstream.engines.native.captured.chain_cycle import ChainCycle
from slipstream.engines.native.captured.result import CycleResult
from slipstream.engines.native.captured.runner import CapturedRunner
from slipstream.engines.native.captured.sizes import size_for
from slipstream.engines.native.captured.tree_cycle import TreeCycle
from slipstream.engines.native.scheduler import Limits
from slipstream.kernels.gpu import sample as draw
from slipstream.models.run.gpu import pass_sizes
from slipstream.models.run.gpu.decoder import GpuDecoder
from slipstream.models.run.torch_model import TorchModel
from state_heads import drafter_for
from tiny import VOCAB, build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = {"num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1, "tie_word_embeddings": False}
IDS = [8, 21, 34]  # what the target says, nearly always; so even an untrained head is often right
SCALE = 5.0
Wanted = tuple[int, int, int, Shape | None]
"""Of a row: prompt, tokens, depth, shape."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that find nothing to do cost the interpreter as much as others."""
    if DEVICE == "cpu":
        monkeypatch.setattr(pass_sizes, "LEAST", 1)
        monkeypatch.setattr(draw, "BLOCK", 128)
        for name, some in (("LEVELS", (2, 3)), ("WIDTHS", (2, 3)), ("NODES", (4, 6, 8))):
            monkeypatch.setattr(sizes, name, some)


class Noting(Policy):
    """Keeps every draft, and how likely its paths are; nobody asks it for a budget."""

    def __init__(self) -> None:
        self.drafts: list[tuple[list[tuple[int, int]], list[int]]] = []
        self.weights: list[list[float]] = []

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [Budget(0) for _ in rows]

    def observe(self, rows: Sequence[Row], draft: Draft, verdict: Verdict) -> None:
        self.drafts.append((draft.tree.lists, draft.token.tolist()))
        weights: list[float] = []
        for (_, parent), chance in zip(
            draft.tree.lists, [] if draft.chance is None else draft.chance.tolist(), strict=False
        ):
            weights.append(chance * (weights[parent] if parent >= 0 else 1.0))
        self.weights.append(weights)

    def note(self, told: Sequence[CycleResult], cycle: ChainCycle | TreeCycle) -> None:
        """The same of a cycle on the device."""
        lists, tokens = list[tuple[int, int]](), list[int]()
        for r, one in enumerate(told):
            first = len(lists)
            lists += [(r, first + parent if parent >= 0 else -1) for parent in one.parents]
            tokens += one.tokens
        self.drafts.append((lists, tokens))
        if isinstance(cycle, TreeCycle):
            self.weights.append(cycle._pool.weight[cycle._pool.kept >= 0].exp().tolist())
        else:
            chance = cycle._chance.cumprod(0)
            self.weights.append([float(chance[n, r]) for r, one in enumerate(told) for n in range(len(one.tokens))])


@dataclass
class Run:
    tokens: list[list[int]]
    cycles: int  # of rows, all together
    accepted: int
    whole: int  # cycles that ran on the device
    kinds: list[Any]
    drafts: list[tuple[list[tuple[int, int]], list[int]]]  # of each cycle: rows and parents, tokens
    weights: list[list[float]]  # and the probability of each node's path
    held: list[list[torch.Tensor]]  # of each row in the end: keys, values and states of every layer, and the head's


def noted(found: tuple[ChainCycle | TreeCycle, bool], policy: Noting) -> tuple[ChainCycle | TreeCycle, bool]:
    """The cycle, which also tells the policy what it drafted, and whether it was captured."""
    cycle, captured = found
    read = type(cycle).told

    def told(record: Sequence[list[int]]) -> list[CycleResult]:
        results = read(cycle, record)
        policy.note(results, cycle)
        return results

    cycle.told = told
    return cycle, captured


def run(
    fast: bool, rule: str, warm: float, rows: Sequence[Wanted], overlap: bool = True, drafter: str = "eagle"
) -> Run:
    """Decode rows together. Without `overlap` no cycle is launched before the last one's record was read, so that the
    weights are still on the device when they are noted."""
    model = build("llama", **SMALL)
    with torch.no_grad():
        others = [token for token in range(VOCAB) if token not in IDS]
        model.lm_head.weight[others] *= 0.1
        model.lm_head.weight[IDS] *= SCALE
    model = model.to(DEVICE)
    target = TorchModel(model)
    target.forward_pass.decoder = GpuDecoder(model, target.anatomy.layers, target.anatomy.windows) if fast else None
    head = eagle(target) if drafter == "eagle" else other(target, drafter)
    parts = {"none": NoDrafter(VOCAB), drafter: head}
    whole = CapturedRunner(target, target.decoder) if fast else None
    policy = Noting()
    batch = Batch(target, parts.__getitem__, lambda name: rules.get(name)(), policy, Limits(), runner=whole)
    if whole is not None:
        make = whole._cycle
        whole._cycle = lambda *args: noted(make(*args), policy)
        if not overlap:
            whole.launch_next = lambda *_: None
    jobs, rng = [], random.Random(1)
    for n, (length, tokens, depth, shape) in enumerate(rows):
        prompt = [rng.randrange(VOCAB) for _ in range(length)]
        plan = DecodingPlan(drafter, rule, depth, shape)
        jobs.append(Job(Request(prompt, Sampling(temperature=warm, seed=n), tokens), plan))
        batch.check(jobs[-1])
        batch.add(jobs[-1])
    held: dict[Row, list[torch.Tensor]] = {}
    with torch.inference_mode():
        while batch.step():
            target.check_integrity()
            if isinstance(head, Eagle):
                head.slots.check_integrity()
            held |= {row: contents(target, head, row) for row in target.rows}
    assert not batch.failures
    stats = [job.stats for job in jobs]
    counts = sum(one.cycles for one in stats), sum(sum(one.accepted) for one in stats)
    kinds = [cycle.key for cycle in whole.captured] if whole else []
    caches = [held[job.row] for job in jobs]
    outputs = [job.row.output for job in jobs]
    return Run(outputs, *counts, whole.cycles if whole else 0, kinds, policy.drafts, policy.weights, caches)


def eagle(target: TorchModel) -> Eagle:
    model = target.model
    net = random_head(EagleConfig(32, 1, 1, 16, 24, (0, 1), len(IDS)), model.lm_head.weight.detach()[IDS] / SCALE)
    with torch.no_grad():
        net.o.weight *= 25.0  # what a node sees must matter
    target.declare(net.config.features)
    ids, embedding = torch.tensor(IDS, device=DEVICE), model.model.embed_tokens.weight.detach()
    head = Eagle(net.to(DEVICE), ids, embedding, target, VOCAB)
    head.slots._kernel = None
    return head


def other(target: TorchModel, name: str) -> Drafter:
    if not name.startswith("dflash"):
        return drafter_for(name)(target, IDS, (0, 1))
    drafter = blocks.dflash(target, IDS, features=(0, 1), block=8, markov=16 if name == "dflash,markov" else 0)
    drafter.slots._kernel = None
    return drafter


def contents(target: TorchModel, head: Drafter, row: Row) -> list[torch.Tensor]:
    """What the caches hold of a row's text."""
    mine, count = target.index(row), target.cached(row)
    found = [part[0, :, mine : mine + count].clone() for _, parts in target.cache.all_tensors() for part in parts]
    if not isinstance(head, Eagle):
        return found
    mine, count = head.slots.index(row), head.slots._head_rows[row].held
    return found + [
        part[0, :, mine : mine + count].clone() for _, parts in head.slots.cache.all_tensors() for part in parts
    ]


TREE, LESS = Shape(nodes=6, width=3), Shape(nodes=4, width=2)


@pytest.mark.parametrize(
    ("rule", "warm", "rows"),
    [
        pytest.param("greedy", 0.0, [(8, 10, 3, TREE), (3, 5, 2, None)], marks=pytest.mark.slow),
        ("coupled", 0.7, [(9, 8, 3, TREE), (3, 5, 2, LESS)]),
        pytest.param("chosen", 0.7, [(9, 10, 3, TREE), (3, 2, 0, None)], marks=pytest.mark.slow),
    ],
)
def test_captured_trees_say_what_the_others_say(rule, warm, rows):
    """Beside a tree: a chain, a smaller tree, and a row that drafts nothing."""
    wanted, mine = run(False, rule, warm, rows), run(True, rule, warm, rows)
    assert mine.tokens == wanted.tokens
    for one, other in zip(mine.held, wanted.held, strict=True):
        assert len(one) == len(other) == 8, "two layers: keys, values and states; the head's keys and values"
        for part, known in zip(one, other, strict=True):
            count = min(part.shape[1], known.shape[1])  # the host's head reads what was committed when it drafts next
            assert count >= part.shape[1] - 4
            torch.testing.assert_close(part[:, :count], known[:, :count], atol=1e-4, rtol=1e-4)
    assert mine.accepted >= 2, "no accepted path was read again"
    assert mine.whole >= max(tokens for _, tokens, *_ in rows) - 1 - mine.accepted, "cycles went the other way"
    assert mine.drafts == wanted.drafts
    assert (mine.cycles, mine.accepted) == (wanted.cycles, wanted.accepted)
    if rule == "greedy":
        apart = run(True, rule, warm, rows, overlap=False)
        assert apart.drafts == wanted.drafts
        for some, others in zip(apart.weights, wanted.weights, strict=True):
            torch.testing.assert_close(torch.tensor(some), torch.tensor(others), atol=1e-5, rtol=1e-3)
        chains = run(False, rule, warm, [(length, tokens, depth, None) for length, tokens, depth, _ in rows])
        assert mine.accepted > chains.accepted, "siblings bring nothing"
        assert chains.tokens == mine.tokens
        assert len(mine.kinds) < mine.whole, "every cycle was captured anew"


OTHERS = ["dflash", "dflash,markov", "medusa", "medusa,recurrent", "mlp", "prophet"]
OFTEN = {"dflash,markov", "medusa", "medusa,recurrent"}  # the others run with the slow tests


@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        pytest.param(drafter, rule, marks=() if drafter in OFTEN and rule == "chosen" else pytest.mark.slow)
        for drafter in OTHERS
        for rule in ("greedy", "chosen", "coupled")
    ],
)
def test_captured_trees_of_other_drafters_say_what_the_others_say(drafter, rule):
    warm, rows = 0.0 if rule == "greedy" else 0.7, [(9, 9, 3, TREE), (3, 4, 2, LESS)]
    wanted, mine = (run(fast, rule, warm, rows, drafter=drafter) for fast in (False, True))
    assert mine.tokens == wanted.tokens
    assert mine.drafts == wanted.drafts
    assert (mine.cycles, mine.accepted) == (wanted.cycles, wanted.accepted)
    assert any(key.nodes for key in mine.kinds), "no tree was captured"
    assert mine.accepted >= 1, "no accepted path was read again"
    assert min(run.held[0][0].shape[1] for run in (mine, wanted)) > 9, "nothing beyond the prompt is compared"
    for one, other in zip(mine.held, wanted.held, strict=True):
        for part, known in zip(one, other, strict=True):
            count = min(part.shape[1], known.shape[1])  # seen after the last cycle but one, which is not the same one
            torch.testing.assert_close(part[:, :count], known[:, :count], atol=1e-4, rtol=1e-4)


def test_what_is_not_grown_or_too_large_goes_the_other_way(monkeypatch):
    for name, some in (("LEVELS", (2, 3)), ("WIDTHS", (2, 3)), ("NODES", (4, 6, 8))):
        monkeypatch.setattr(sizes, name, some)
    greedy, chosen = (rules.get(name).device_rule for name in ("greedy", "chosen"))
    tree = Budget(3, shape=Shape(nodes=6, width=3))
    assert size_for([tree, Budget(2)], greedy) == DraftSize(3, 3, 6)
    assert size_for([Budget(2)], chosen) == DraftSize(2, 2, 4)
    assert size_for([Budget(2)], greedy) == DraftSize(2)
    assert size_for([Budget(0, shape=tree.shape)], chosen) == DraftSize(0)
    assert size_for([tree] * 180, greedy) == DraftSize(3, 3, 4), "a pass as wide as that has room for fewer nodes"
    assert size_for([tree] * 240, greedy) is None
    assert size_for([tree, Budget(2, shape=Shape((-1, -1)))], greedy) is None
    assert size_for([Budget(3, shape=Shape(nodes=90, width=3))], greedy) is None
    assert size_for([Budget(3, shape=Shape(nodes=6, width=9))], greedy) is None
