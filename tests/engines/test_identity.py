"""The small form of `make identity`: in invariant mode an output is the same to the last token in any company."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

import letters
from slipstream.core.sampling import Sampling
from slipstream.engines.base import Speculation, Wish
from slipstream.engines.native.build import Target, build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.kernels.cpu_attention import kernel
from slipstream.models.linears import pack_linears
from slipstream.models.torch_model import TorchModel

needs_compiler = pytest.mark.skipif(kernel() is None, reason="needs a C++ compiler")


def outputs(target: Target, prompts: list[str], rows: int, rule: str, drafted: bool, tokens: int) -> list[list[int]]:
    limits = Limits(rows=rows, prefill=5 + rows, retained=4096 if drafted else 0)
    with NativeEngine(target, "ngram", "coupled", limits=limits) as engine:
        tickets = []
        for i, prompt in enumerate(prompts):
            how = Sampling(temperature=0) if rule == "greedy" else Sampling(0.9, seed=i)
            speculation = Speculation(depth=1 + i % 4) if drafted else Speculation(off=True)
            tickets += engine.submit(prompt, how, Wish(tokens, ignore_ends=True, speculation=speculation))
        done = [ticket.result() for ticket in tickets]
    assert any(sum(one.tally.drafted) for one in done) == drafted
    return [one.tokens for one in done]


def check(target: Target, prompts: list[str], tokens: int) -> None:
    for rule in ("greedy", "coupled"):
        alone = outputs(target, prompts, 1, rule, False, tokens)
        for rows, drafted in ((1, True), (len(prompts), False), (len(prompts), True)):
            assert outputs(target, prompts, rows, rule, drafted, tokens) == alone, f"{rule}, {rows} rows, {drafted}"


@needs_compiler
def test_on_a_model_of_letters():
    model, plain = copy.deepcopy(letters.plain()), letters.target()
    pack_linears(model)
    target = replace(plain, model=TorchModel(model, invariant=True))
    check(target, ["abcabcabc", "ponmponm", "a", "abcabcabd", "hgfe" * 9, "kkkk"], 40)


@needs_compiler
@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_the_default_model(dtype):
    """In bfloat16 too, where equal logits are common and the least rounding would show."""
    target = build_target("smollm2-135m", dtype, "cpu", invariant=True)
    check(target, ["Say red green red green red green.", "Count: 1 2 3 1 2 3 1 2 3", "Tell me a joke."], 8)
