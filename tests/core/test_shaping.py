"""Shaping against a naive reference: token by token, in plain Python, from the definitions alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.sampling import Sampling
from slipstream.core.shaping import needs_shaping, places, shape
from slipstream.core.tree import Tree
from slipstream.core.types import Constraint, Origin, Request, Row

VOCAB = 6
LOGITS = torch.tensor([[1.5, -2.0, 0.0, 3.0, -0.5, 0.25]], dtype=torch.float64)


def row(sampling: Sampling, prompt=(1, 2), output=(), **limits) -> Row:
    made = Row(Request(prompt, sampling, **limits))
    if output:
        made.extend(list(output), [Origin.PLAIN] * len(output), 1 << 30)
    return made


def naive(logits: Sequence[float], made: Row, path: Sequence[int]) -> list[float]:
    params, request = made.request.sampling, made.request
    output = [*made.output, *path]
    shaped = []
    for token, logit in enumerate(logits):
        if token in request.prompt or token in output:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        if token in output:
            logit -= params.presence_penalty + params.frequency_penalty * output.count(token)
        logit += params.logit_bias.get(token, 0.0)
        refused = token in params.suppress_tokens or (
            params.allowed_token_ids is not None and token not in params.allowed_token_ids
        )
        early = token in request.ends and len(output) < request.min_tokens
        shaped.append(-math.inf if refused or early else logit)
    return shaped


tokens = st.integers(0, VOCAB - 1)
parameters = st.fixed_dictionaries(  # a Sampling is made in the test: strategies may not use `random`, as beartype does
    {
        "repetition_penalty": st.sampled_from([1.0, 0.5, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 0.7, -0.4]),
        "frequency_penalty": st.sampled_from([0.0, 0.3, -0.2]),
        "logit_bias": st.dictionaries(tokens, st.floats(-3, 3), max_size=3),
        "allowed_token_ids": st.none() | st.frozensets(tokens, min_size=3),
        "suppress_tokens": st.frozensets(tokens, max_size=2),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    parameters,
    st.lists(tokens, min_size=1, max_size=4),
    st.lists(tokens, max_size=4),
    st.lists(tokens, max_size=3),
    st.integers(0, 6),
)
def test_everything_at_once_equals_the_naive_reference(parameters, prompt, output, path, least):
    made = row(Sampling(**parameters), prompt, output, min_tokens=least)
    made.request = replace(made.request, ends=frozenset({0, 4}))  # only now, so that none of the output ended the row
    found = shape(LOGITS, [(made, path)])[0].tolist()
    assert found == pytest.approx(naive(LOGITS[0].tolist(), made, path))


def test_each_place_sees_the_history_of_its_own_path():
    made = row(Sampling(frequency_penalty=1.0), output=[3])
    tree = Tree.of(1, [0, 0, 0], [-1, 0, -1])  # 3 then 3, and 5 beside them
    where = places([made], tree, [3, 3, 5])
    assert [path for _, path in where] == [(), (3,), (3, 3), (5,)]
    shaped = shape(LOGITS.expand(4, -1), where)
    assert shaped[:, 3].tolist() == [2.0, 1.0, 0.0, 2.0]
    assert shaped[:, 5].tolist() == [0.25, 0.25, 0.25, -0.75]


def test_the_argument_is_left_as_it_was_and_rows_that_ask_for_nothing_too():
    before = LOGITS.clone()
    plain, other = row(Sampling()), row(Sampling(suppress_tokens=frozenset({0})))
    assert not needs_shaping(plain)
    assert shape(LOGITS, [(plain, ())]) is LOGITS
    both = shape(LOGITS.expand(2, -1), [(plain, ()), (other, ())])
    assert both[0].tolist() == before[0].tolist()
    assert both[1, 0] == -math.inf
    assert torch.equal(LOGITS, before)


def test_half_precision_is_widened_before_it_is_shaped():
    made = row(Sampling(logit_bias={0: 1e-4}))
    assert shape(LOGITS.bfloat16(), [(made, ())]).dtype == torch.float32


def test_a_minimum_length_counts_drafted_tokens():
    made = row(Sampling(), min_tokens=2, ends=frozenset({0}))
    held = [bool(shape(LOGITS, [(made, path)])[0, 0].isinf()) for path in ((), (1,), (1, 2))]
    assert held == [True, True, False]


def test_a_processor_sees_all_tokens_before_its_place_and_comes_before_the_grammar():
    seen = []

    def processor(before, logits):
        seen.append(list(before))
        return logits + 10 * (torch.arange(VOCAB) == 2)

    class Never2(Constraint):
        def allowed(self, path):
            return torch.arange(VOCAB) != 2

        def advance(self, some):
            pass

    made = row(Sampling(), output=[4], processor=processor, grammar=Never2)
    assert shape(LOGITS, [(made, (5,))])[0, 2] == -math.inf
    assert seen == [[1, 2, 4, 5]]


def test_a_path_the_grammar_refuses_is_left_alone():
    class Refuses(Constraint):
        def allowed(self, path):
            return None if path else torch.zeros(VOCAB, dtype=torch.bool)

        def advance(self, some):
            pass

    made = row(Sampling(), grammar=Refuses)
    assert bool(shape(LOGITS, [(made, ())]).isinf().all())
    assert torch.equal(shape(LOGITS, [(made, (1,))]), LOGITS)
