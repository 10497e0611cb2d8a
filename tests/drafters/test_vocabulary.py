"""A law over the draft vocabulary is the law over all tokens where the others have no logit."""

from __future__ import annotations

import pytest
import torch

from slipstream.core.law import OneHot
from slipstream.core.sampling import Sampling
from slipstream.core.shaping import law_at
from slipstream.core.types import Request, Row
from slipstream.drafters.vocabulary import DraftVocabulary

SIZE, IDS = 200, torch.tensor([0, 3, 4, 9, 11, 20, 33, 48, *range(60, 160, 2)])
WISHES = {
    "plain": Sampling(),
    "greedy": Sampling(0),
    "cut": Sampling(0.7, top_k=4, top_p=0.9, min_p=0.05),
    "wide": Sampling(1.3, top_k=100),
    "penalties": Sampling(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    "bias": Sampling(0.8, top_p=0.8, logit_bias={3: 2.0, 5: 9.0}),
    "banned": Sampling(0, suppress_tokens=frozenset({33, 7}), logit_bias={33: 90.0}),
    "allowed": Sampling(allowed_token_ids=frozenset({1, 4, 9})),
}


def spread(logits):
    wide = torch.full((len(logits), SIZE), -torch.inf)
    wide[:, IDS] = logits
    return wide


@pytest.mark.parametrize("names", [*([name] for name in WISHES), list(WISHES)], ids=lambda names: "+".join(names)[:20])
@pytest.mark.parametrize("ranking", [False, True])
def test_it_is_the_law_over_all_tokens(names, ranking):
    torch.manual_seed(1)
    rows = [Row(Request([3, 9, 20], WISHES[name])) for name in names]
    places = [(row, (4, 4)) for row in rows]
    logits = torch.randn(len(rows), len(IDS)) * 2
    logits[:, 5] = logits[:, 2]  # equals are kept or dropped together, and the first id wins
    kept = logits.clone()
    law = DraftVocabulary(IDS, SIZE).law_at(logits, places, ranking)
    assert torch.equal(logits, kept)
    expected = law_at(spread(logits), places, ranking)
    torch.testing.assert_close(law.dense(), expected.dense(), rtol=1e-6, atol=1e-7)
    assert isinstance(law, OneHot) == isinstance(expected, OneHot)


def test_what_was_cut_off_is_not_carried_along():
    place = (Row(Request([1], Sampling(top_k=5))), ())
    law = DraftVocabulary(IDS, SIZE).law_at(torch.randn(1, len(IDS)), [place])
    assert law.support()[0].shape == (1, 5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_is_allowed_there_is_no_law_and_the_others_keep_theirs(temperature):
    wishes = [Sampling(temperature), Sampling(temperature, allowed_token_ids=frozenset({7})), Sampling(temperature)]
    places = [(Row(Request([1], wish)), ()) for wish in wishes]
    logits = torch.randn(3, len(IDS))
    law = DraftVocabulary(IDS, SIZE).law_at(logits, places).dense()
    assert float(law[1].sum()) == 0
    torch.testing.assert_close(law[[0, 2]], law_at(spread(logits[[0, 2]]), [places[0], places[2]]).dense())


def test_logits_that_are_no_numbers_are_told():
    place = (Row(Request([1], Sampling())), ())
    with pytest.raises(FloatingPointError):
        DraftVocabulary(IDS, SIZE).law_at(torch.full((1, len(IDS)), torch.nan), [place])
