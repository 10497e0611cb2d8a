"""A tiny target and a drafter on its hidden states. Every law that the drafter reports is compared as it drafts."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

import heads
from slipstream.core.loop import decode
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Siblings
from slipstream.core.types import Budget, Request, Row
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed
from tiny import VOCAB, build

SOME = sorted(random.Random(1).sample(range(VOCAB), 40))


class Watched:
    """A target beside an untouched copy, and a drafter: in float64, or in float32, where the kernels for few rows run.

    `make(target, ids)` makes the drafter, and `reference(plain, drafter, row, path)` gives its logits by a plain
    computation over the whole text."""

    def __init__(
        self,
        kind: str = "llama",
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        make: Callable[..., Any] = heads.eagle,
        reference: Callable[..., torch.Tensor] = heads.reference,
        **options: Any,
    ) -> None:
        self.plain = build(kind).to(dtype)
        self.close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-4}
        self.target = TorchModel(copy.deepcopy(self.plain), **options)
        self.drafter, self.reference = make(self.target, SOME), reference
        self.rng, self.compared = random.Random(seed), 0
        self._propose, self.drafter.propose = self.drafter.propose, self.propose

    def propose(self, rows, budget, noise):
        draft = self._propose(rows, budget, noise)
        paths, before, laws = [], defaultdict(list), draft.law.dense().double()
        for i, ((r, parent), token) in enumerate(zip(draft.tree.lists, draft.token.tolist(), strict=True)):
            path = [] if parent < 0 else paths[parent]
            paths.append([*path, token])
            expected = self.law(rows[r], path, before[r, parent] if draft.siblings is Siblings.DISTINCT else [])
            before[r, parent].append(token)
            if draft.siblings is Siblings.CHOSEN:
                assert token in expected.topk(len(before[r, parent])).indices
            else:
                torch.testing.assert_close(laws[i], expected, **self.close)
            self.compared += 1
        if hasattr(self.drafter, "slots"):
            self.drafter.slots.check_integrity()
        return draft

    def law(self, row, path, taken):
        logits = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
        logits[self.drafter.vocabulary.ids] = self.reference(self.plain, self.drafter, row, path).double()
        logits[taken] = -torch.inf
        return (logits / row.request.sampling.temperature).softmax(-1)

    def text(self, length):
        return [self.rng.randrange(VOCAB) for _ in range(length)]

    def rows(self, *lengths, max_tokens=10):
        return [Row(Request(self.text(n), Sampling(1.5, seed=n), max_tokens)) for n in lengths]

    def decode(self, rows, rule="token", policy=None):
        for _ in decode(rows, self.target, self.drafter, rules.get(rule)(), policy or Fixed(3)):
            self.target.check_integrity()


class Turns(Fixed):
    """Another budget in every cycle and for every row."""

    def __init__(self, *budgets: Budget) -> None:
        super().__init__(0)
        self.budgets, self.turn = budgets, 0

    def budget(self, rows):
        self.turn += 1
        return [self.budgets[(self.turn + r) % len(self.budgets)] for r in range(len(rows))]
