"""Training of the dflash drafter: its blocks are those that the drafter runs, and its bases are legal."""

from __future__ import annotations

import copy

import pytest
import torch

import letters
from blocks import random_stack
from slipstream.core.types import Request, Row
from slipstream.drafters.dflash.drafter import Dflash
from slipstream.models.run.torch_model import TorchModel
from slipstream.train.batch_decode import generate_answers
from slipstream.train.corpus import Corpus, SampleBatch, collect, shards
from slipstream.train.methods.dflash import DflashMethod, random_bases
from slipstream.train.options import DflashTrainOptions
from slipstream.train.prompts import TrainingPrompt
from slipstream.train.teacher import Teacher

IDS = torch.arange(2, 19)


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(copy.deepcopy(letters.plain()))


@pytest.fixture(scope="module")
def data(teacher: Teacher, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    prompts = [TrainingPrompt((1, *range(3, 4 + n), 2), "x") for n in range(1, 8)]

    def answer(some, temperatures, seed):
        asked = [prompt.tokens for prompt in some]
        return generate_answers(teacher.model, teacher.anatomy, asked, temperatures, frozenset({0}), 12, seed)

    return collect(tmp_path_factory.mktemp("answers"), shards(prompts, [0.0, 1.0], 16, 0), answer, lambda done: None)


def student(teacher: Teacher, **options) -> DflashMethod:
    """A method whose network has weights large enough for every part of it to matter."""
    method = DflashMethod(teacher, IDS, DflashTrainOptions(**({"layers": 2, "block": 4} | options)))
    method.net = random_stack(method.net.config, method.net.output)
    method.follow_target()
    return method


def drafted(method: DflashMethod, text: list[int], length: int, depth: int) -> torch.Tensor:
    """The log-probabilities [depth, draft_vocab] of the drafter after the first tokens of a text. A Markov head is told
    the tokens that follow there."""
    tokens = text[:length]
    model = TorchModel(copy.deepcopy(letters.plain()))
    model.declare(method.layers)
    drafter = Dflash(method.net, IDS, model.model.get_input_embeddings().weight.detach(), model, model.vocab)
    row = Row(Request(tokens))
    model.open([row]), drafter.open([row])
    model.prefill([row], len(tokens))
    with torch.inference_mode():
        logits = drafter.slots.outputs([row], depth)[0]
        if drafter.markov is not None:
            before = (text + [0] * depth)[length - 1 : length - 1 + depth]
            logits = drafter.markov(logits, torch.tensor(before))
        return logits.log_softmax(-1)


@pytest.mark.parametrize(("layout", "markov"), [("joined", 0), ("joined", 16), ("masked", 0)])
def test_guesses_are_the_laws_of_the_drafter(teacher, data, layout, markov):
    method, depth = student(teacher, layout=layout, markov=markov), 3
    batch = data.batch(list(range(len(data))))
    guesses = method.guesses(batch, teacher.read(batch, method.layers), depth)
    compared = 0
    for row in (0, 5):
        tokens, prompt, length = batch.tokens[row].tolist(), int(batch.prompt_length[row]), int(batch.length[row])
        for base in range(prompt - 1, length - 2):
            laws = drafted(method, tokens[:length], base + 2, depth)
            for step in range(min(depth, length - 2 - base)):
                token, guess = tokens[base + 2 + step], guesses[step]
                assert int(guess.position[row, base]) == base + 1 + step
                assert bool(guess.right[row, base]) == (int(IDS[laws[step].argmax()]) == token)
                known = (token == IDS).nonzero()
                expected = float(laws[step, known[0, 0]]) if len(known) else -torch.inf
                assert float(guess.log_prob[row, base]) == pytest.approx(expected, abs=1e-3)
                compared += 1
        assert all(int(guess.position[row, length - 2]) == -1 for guess in guesses)
    assert compared > 20


@pytest.mark.parametrize(("layout", "markov"), [("joined", 0), ("joined", 16), ("masked", 0)])
def test_the_loss_is_the_weighted_cross_entropy_of_the_blocks(teacher, data, layout, markov):
    method = student(teacher, anchors=100, gamma=2.0, focus=0.25, layout=layout, markov=markov)
    batch = data.batch([3])
    output = teacher.read(batch, method.layers)
    tokens, prompt, length = batch.tokens[0].tolist(), int(batch.prompt_length[0]), int(batch.length[0])
    probs = teacher.log_probs(output.last[0], IDS).exp()
    total, weights = 0.0, 0.0
    for base in range(prompt - 1, length - 2):
        laws, before = drafted(method, tokens[:length], base + 2, 4), 1.0
        for step in range(min(4, length - 2 - base)):
            weight = float(torch.tensor(-step / 2.0).exp()) * (0.75 + 0.25 * before)
            total -= weight * float(probs[base + 1 + step] @ laws[step])
            weights += weight
            known = (tokens[base + 2 + step] == IDS).nonzero()
            before *= float(laws[step, known[0, 0]].exp()) if len(known) else 0.0
    assert float(method.loss(batch, output)) == pytest.approx(total / weights, rel=1e-3)


def test_bases_are_different_legal_and_fixed_by_the_batch(data):
    batch = data.batch(list(range(len(data))))
    bases = random_bases(batch, 4)
    assert bases.shape == (len(data), 4)
    for row, (prompt, length) in enumerate(zip(batch.prompt_length.tolist(), batch.length.tolist(), strict=True)):
        chosen = [base for base in bases[row].tolist() if base >= 0]
        assert len(set(chosen)) == len(chosen) == min(4, max(0, length - prompt - 1))
        assert all(prompt - 1 <= base <= length - 3 for base in chosen)
    assert torch.equal(bases, random_bases(batch, 4))
    assert not torch.equal(bases[1:], random_bases(data.batch(list(range(1, len(data)))), 4))


def test_answers_of_one_token_give_no_block_and_a_loss_of_zero(teacher):
    batch = SampleBatch(torch.randint(3, 19, (2, 8)), torch.tensor([4, 6]), torch.tensor([5, 7]), torch.zeros(2))
    method = DflashMethod(teacher, IDS, DflashTrainOptions())
    loss = method.loss(batch, teacher.read(batch, method.layers))
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(
        int(guess.position.max()) == -1 for guess in method.guesses(batch, teacher.read(batch, method.layers), 5)
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"block": 0}, "block is 0; it must be 1 or more"),
        ({"focus": 1.5}, "focus is 1.5; it must be between 0 and 1"),
        ({"gamma": 0.0}, "gamma is 0.0; it must be above 0"),
        ({"kv_heads": 3}, "kv_heads is 3; it must divide the target's 4 heads"),
        ({"features": "7"}, "features names layer 7; the target has layers 0 to 1"),
    ],
)
def test_bad_options_are_refused_by_name(options, said, teacher):
    with pytest.raises(ValueError, match=said):
        DflashMethod(teacher, IDS, DflashTrainOptions(**options))
