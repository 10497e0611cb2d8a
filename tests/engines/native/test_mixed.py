"""Requests of every kind in one batch come out as each does alone: on a model of letters, and on the default one."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import batches
import default
import letters
from slipstream.core.sampling import Sampling
from slipstream.core.types import Draft, Request, Row
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.none import NoDrafter
from slipstream.engines.base import Completion, GenerationOptions, Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.run.layers import keep_layers
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.config import AdaptiveConfig
from slipstream.plan.policy.policies import Adaptive

TEXT = "The cat sat on the mat. The dog sat on the mat. The cat sat on the"
ASKED = [
    (Sampling(temperature=0), Speculation(drafter="ngram", depth=4, verify="token")),
    (Sampling(temperature=0, repetition_penalty=1.2), Speculation(drafter="ngram", depth=2)),
    (Sampling(temperature=0), Speculation(off=True)),
    (Sampling(temperature=0, logit_bias={260: 2.0}), Speculation()),  # the policy decides
    (Sampling(temperature=0.7, top_p=0.9, seed=1), Speculation(drafter="ngram", depth=5, verify="coupled")),
    (Sampling(temperature=1.0, top_k=20, min_p=0.02, seed=2), Speculation(drafter="ngram", verify="coupled")),
    (Sampling(temperature=0.9, frequency_penalty=0.3, seed=3), Speculation(off=True, verify="coupled")),
]
TIE = 1e-3


def gap(target, tokens: list[int]) -> float:
    """How far apart the two likeliest next tokens are."""
    row, none = Row(Request(tokens)), NoDrafter(target.model.vocab)
    target.model.open([row])
    draft: Draft = none.propose([row], [], None)  # type: ignore[arg-type]
    best = target.model.score([row], draft).logits[0].topk(2).values
    target.model.close([row])
    return float(best[0] - best[1])


def test_a_draft_model_among_other_drafters():
    """Its cache follows rows that come and go, at depths of their own or the policy's."""
    small = copy.deepcopy(letters.plain())
    keep_layers(small, "0")
    mini = DraftModel(TorchModel(small), len(letters.TOKENS))
    with NativeEngine(letters.target(), verify="coupled", limits=Limits(rows=5, prefill=4)) as engine:
        engine._drafters["mini"] = mini
        ways = [Speculation(drafter=d, depth=k) for d in ("mini", "ngram") for k in (None, 1, 3)]
        asked = [
            (text, Sampling(temperature=0.5, seed=i), GenerationOptions(8 + i, ignore_eos=True, speculation=way))
            for i, way in enumerate(ways)
            for text in ("abcabc", "ponm")
        ]
        tickets = [engine.submit(*one)[0] for one in asked]
        together = [ticket.result() for ticket in tickets]
        for (text, how, options), found in zip(asked, together, strict=True):
            (alone,) = engine.submit(text, how, replace(options, speculation=Speculation(off=True)))
            assert alone.result().token_ids == found.token_ids
        assert engine.stats["failures"] == {}
        drafted = [
            c for c, (_, _, options) in zip(together, asked, strict=True) if options.speculation.drafter == "mini"
        ]
        assert sum(sum(c.stats.accepted) for c in drafted) > 0
    assert not mini.model.rows
    assert not engine.target.model.rows


@pytest.mark.parametrize("rules", [("greedy", "coupled"), ("block", "no_replace"), ("greedy", "token", "coupled")])
def test_a_draft_model_shared_by_rows_under_several_rules(rules, monkeypatch):
    """It reads what it reads for each of them alone: what one rule decided is not taken for what another did."""
    small, read = copy.deepcopy(letters.plain()), 0
    keep_layers(small, "0")
    mini = DraftModel(TorchModel(small, retained=0), len(letters.TOKENS))
    forward = mini.model.forward_pass.run

    def counted(pieces, *rest):
        nonlocal read
        read += sum(map(len, pieces))
        return forward(pieces, *rest)

    monkeypatch.setattr(mini.model.forward_pass, "run", counted)
    asked = [
        (
            text,
            Sampling(0 if rule == "greedy" else 0.8, seed=i),
            GenerationOptions(12, ignore_eos=True, speculation=how),
        )
        for i, (rule, text) in enumerate(zip(rules, ("abcabc", "ponm", "hgfe"), strict=False))
        for how in [Speculation(drafter="mini", depth=3 + i % 2, verify=rule)]
    ]
    with NativeEngine(letters.target(), "none", limits=Limits(retained=0)) as engine:
        engine._drafters["mini"] = mini
        alone = [ticket.result().token_ids for one in asked for ticket in engine.submit(*one)]
        apart, read = read, 0
        tickets = [engine.submit(*one)[0] for one in asked]
        assert [ticket.result().token_ids for ticket in tickets] == alone
        assert engine.stats["failures"] == {}
    assert read == apart


def test_speculation_switched_off_after_a_cycle_that_drafted():
    """The policy has then nobody to decide for, and must not go by what the cycle before had drafted."""
    policy = Adaptive(AdaptiveConfig(max_depth=1))
    for tokens in (1, 2):
        policy.costs.learn(0.02, tokens, drafted=tokens - 1)
    batch = batches.batch(policy=policy)
    free = batches.send(batch, Request([0, 1, 2], Sampling(seed=1), 9), depth=None)
    batch.step()
    assert free.stats.drafted == [1]
    free.cancel()
    off = batches.send(batch, Request([0, 1, 2], Sampling(seed=2), 9), "none", depth=0)
    batches.finish(batch)
    assert off.row.output == batches.alone(off).output


@pytest.mark.model
def test_a_mixed_batch_equals_each_request_alone():
    target = default.target()
    with NativeEngine(target) as engine:
        prompt = target.text.encode(TEXT, raw=True)
        requested = [
            GenerationOptions(6, ignore_eos=True, logprobs=2, speculation=speculation) for _, speculation in ASKED
        ]
        tickets = [engine.submit(prompt, how, options)[0] for (how, _), options in zip(ASKED, requested, strict=True)]
        together = [ticket.result() for ticket in tickets]
        alone = [
            engine.submit(prompt, how, options)[0].result() for (how, _), options in zip(ASKED, requested, strict=True)
        ]
        assert engine.stats["failures"] == {}
    ties = sum(compare(target, prompt, a, b) for a, b in zip(together, alone, strict=True))
    assert ties <= 1
    assert any(sum(c.stats.accepted) for c in together)
    target.model.check_integrity()
    assert not target.model.rows


def compare(target, prompt: list[int], a: Completion, b: Completion) -> int:
    """1 where the two part at a tie within float32, 0 where they are the same."""
    if a.token_ids == b.token_ids:
        values = [[entry.logprob for entry in c.logprobs] for c in (a, b)]
        assert values[0] == pytest.approx(values[1], abs=1e-3)
        return 0
    at = next(i for i, (x, y) in enumerate(zip(a.token_ids, b.token_ids, strict=True)) if x != y)
    with torch.inference_mode():
        assert gap(target, [*prompt, *a.token_ids[:at]]) < TIE
    return 1
