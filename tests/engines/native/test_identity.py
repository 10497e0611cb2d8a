"""The small form of `make identity`: in invariant mode an output is the same to the last token in any company."""

from __future__ import annotations

import copy
from itertools import product

import pytest

import default
import letters
from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions, Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.kernels.cpu.attention import kernel
from slipstream.kernels.cpu.linear import has_integers
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.target import Target
from slipstream.models.weights.linears import pack_linears

needs_integers = pytest.mark.skipif(not has_integers(), reason="needs instructions for products of bytes")
needs_compiler = pytest.mark.skipif(kernel() is None, reason="needs a C++ compiler")


def outputs(target: Target, prompts: list[str], rows: int, drafted: bool, tokens: int) -> list[list[int]]:
    """Every prompt greedily and sampled with a seed of its own, so many at a time."""
    limits = Limits(rows=rows, prefill=5 + rows, retained=4096 if drafted else 0)
    with NativeEngine(target, "ngram", "coupled", limits=limits) as engine:
        tickets = []
        for i, (prompt, temperature) in enumerate(product(prompts, (0.0, 0.9))):
            speculation = Speculation(depth=1 + i % 4) if drafted else Speculation(off=True)
            options = GenerationOptions(tokens, ignore_eos=True, raw=True, speculation=speculation)
            tickets += engine.submit(prompt, Sampling(temperature, seed=i), options)
        done = [ticket.result() for ticket in tickets]
    for temperature in (0, 1):
        assert any(sum(one.stats.drafted) for one in done[temperature::2]) == drafted
    return [one.token_ids for one in done]


def check(target: Target, prompts: list[str], tokens: int) -> None:
    alone = outputs(target, prompts, 1, False, tokens)
    for rows, drafted in ((1, True), (2 * len(prompts), False), (2 * len(prompts), True)):
        assert outputs(target, prompts, rows, drafted, tokens) == alone, f"{rows} rows, drafted: {drafted}"


@needs_compiler
def test_on_a_model_of_letters():
    model, plain = copy.deepcopy(letters.plain()), letters.target()
    pack_linears(model)
    target = Target(plain.files, TorchModel(model, invariant=True), plain.text)
    check(target, ["abcabcabc", "ponmponm", "a", "abcabcabd", "hgfe" * 9, "kkkk"], 12)


@needs_compiler
@pytest.mark.model
@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        pytest.param("bfloat16", marks=pytest.mark.slow),
        pytest.param("a8", marks=[needs_integers, pytest.mark.slow]),
    ],
)
def test_on_the_default_model(dtype):
    """In bfloat16 too, where equal logits are common and the least rounding would show."""
    target = default.build("smollm2-135m", dtype, "cpu", invariant=True)
    check(target, ["Say red green red green red green", "Count: 1 2 3 1 2 3 1 2 3", "Tell me a joke."], 6)
