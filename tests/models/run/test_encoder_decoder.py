"""Whisper's decoder with our caches against transformers' own modules: ragged batches, each row with its own audio."""

from __future__ import annotations

import copy
import random

import pytest
import torch

import whispers
from slipstream.core.law import OneHot
from slipstream.core.noise import CounterNoise
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Budget, Draft, Origin, Request, Row, Verdict
from slipstream.drafters.draft_model import DraftModel
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.models.run.encoder_decoder.condition import CrossAttentionStates
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.weights.linears import prepared
from tiny import apart, build
from whispers import run_captured

VOCAB = 11


@pytest.fixture
def plain():
    return whispers.build()


@pytest.fixture(params=["modules", "invariant kernels", "captured passes"])
def model(request, plain) -> TorchModel:
    own = copy.deepcopy(plain)
    if request.param == "invariant kernels":
        return TorchModel(prepared(own), invariant=True)
    return TorchModel(own) if request.param == "modules" else captured(own)


def captured(plain) -> TorchModel:
    """As a GPU runs it: passes over buffers of fixed size, here without the graphs."""
    pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")
    model = TorchModel(plain)
    run_captured(model)
    return model


@torch.no_grad()
def logits_of(plain, row: Row, more: list[int]) -> torch.Tensor:
    ids = torch.tensor([[*row.tokens, *more]])
    return plain(input_features=row.request.condition.features[None], decoder_input_ids=ids).logits[0, -1]


def rows_of(rng: random.Random, *lengths: int) -> list[Row]:
    """Rows with prompts of these lengths, each with its own audio."""
    made = []
    for i, length in enumerate(lengths):
        prompt = [rng.randrange(VOCAB) for _ in range(length)]
        made.append(Row(Request(prompt, max_tokens=60, condition=whispers.condition(i))))
    return made


def random_draft(rng: random.Random, rows: int) -> Draft:
    row, parent = [], []
    for i in range(3 * rows):
        row.append(rng.randrange(rows))
        parent.append(rng.choice([-1, *[j for j in range(i) if row[j] == row[i]]]))
    token = torch.tensor([rng.randrange(VOCAB) for _ in row])
    return Draft(Tree.of(rows, row, parent), token, OneHot(token, VOCAB))


def path_to(draft: Draft, node: int) -> list[int]:
    parent = draft.tree.lists[node][1]
    return [*([] if parent < 0 else path_to(draft, parent)), node]


def test_scores_equal_those_of_the_models_own_modules(plain, model):
    rng = random.Random(0)
    rows = rows_of(rng, 1, 4, 9)
    model.open(rows)
    for _ in range(2 if model.decoder else 6):  # the interpreter is slow
        draft = random_draft(rng, len(rows))
        scores = model.score(rows, draft)
        expected = [logits_of(plain, row, []) for row in rows]
        for i, (r, _) in enumerate(draft.tree.lists):
            expected.append(logits_of(plain, rows[r], [int(draft.token[n]) for n in path_to(draft, i)]))
        assert apart(scores.logits, torch.stack(expected)) < 1
        roots = [[i for i, node in enumerate(draft.tree.lists) if node == (r, -1)][:1] for r in range(3)]
        path = torch.tensor([line or [-1] for line in roots])
        token = torch.tensor([rng.randrange(VOCAB) for _ in rows])
        model.commit(rows, Verdict(path, token, torch.zeros(3, dtype=torch.bool)))
        for row, line, last in zip(rows, roots, token.tolist(), strict=True):
            emitted = [*(int(draft.token[i]) for i in line), last]
            row.extend(emitted, [Origin.PLAIN] * len(emitted), model.context)
        model.check_integrity()
    model.close(rows)


def test_a_rows_bits_do_not_depend_on_its_batch(plain):
    model = TorchModel(prepared(copy.deepcopy(plain)), invariant=True)
    rows = rows_of(random.Random(1), 3, 7, 5)
    none = torch.zeros(0, dtype=torch.long)
    model.open(rows)
    together = model.score(rows, Draft(Tree.chains([0] * 3), none, OneHot(none, VOCAB))).logits
    model.close(rows)
    token = torch.tensor(rows[1].tokens[3:])
    alone = Row(Request(rows[1].tokens[:3], condition=rows[1].request.condition))
    model.open([alone])
    drafted = model.score([alone], Draft(Tree.chains([len(token)]), token, OneHot(token, VOCAB))).logits
    assert torch.equal(drafted[-1], together[1])


def test_an_equal_prompt_with_other_audio_shares_nothing(plain):
    model = TorchModel(copy.deepcopy(plain), retained=1 << 12)
    model.retain(1 << 12)
    prompt, none = [1, *[2, 3, 4] * 20], torch.zeros(0, dtype=torch.long)
    for seed in range(2):
        row = Row(Request(prompt, condition=whispers.condition(seed)))
        model.open([row])
        scores = model.score([row], Draft(Tree.chains([0]), none, OneHot(none, VOCAB)))
        assert apart(scores.logits, logits_of(plain, row, [])[None]) < 1
        model.close([row])


def test_equal_encoders_are_shared_and_run_once_for_a_condition(plain):
    other = whispers.build(seed=3)
    distilled = whispers.build(seed=5)
    distilled.model.encoder.load_state_dict(plain.model.encoder.state_dict())
    models = [TorchModel(each) for each in (plain, distilled, other)]
    encoders = [each.model.get_encoder() for each in models]
    assert encoders[0] is encoders[1]
    assert encoders[0] is not encoders[2]
    calls = []
    encoders[0].register_forward_hook(lambda *_: calls.append(1))
    condition = whispers.condition(0)
    for each in models:
        rows = [Row(Request([1], condition=condition)) for _ in range(2)]
        each.open(rows)
        each.close(rows)
    assert len(calls) == 1
    assert condition.seconds > 0


def test_a_draft_models_encoder_waits_for_its_first_draft_and_says_what_it_will_take(plain):
    target, drafter = TorchModel(plain), DraftModel(TorchModel(whispers.build(seed=3)), VOCAB)
    wider = DraftModel(TorchModel(whispers.build(seed=4, encoder_ffn_dim=48)), VOCAB)
    row = Row(Request([1, 5], Sampling(0), condition=whispers.condition(0)))
    calls = []
    drafter.model.model.get_encoder().register_forward_hook(lambda *_: calls.append(1))
    assert drafter.setup_seconds(row) == 0, "no encoder has told yet"
    target.open([row])
    for each in (drafter, wider):
        each.open([row])
    assert not calls
    assert drafter.setup_seconds(row) == pytest.approx(row.request.condition.seconds), "as large as the target's"
    assert wider.setup_seconds(row) > drafter.setup_seconds(row)
    with torch.inference_mode():
        drafts = [drafter.propose([row], [Budget(2)], CounterNoise([row], [False])) for _ in range(2)]
    assert (len(drafts[0].tree), len(calls), drafter.setup_seconds(row)) == (2, 1, 0)
    assert DraftModel(TorchModel(plain), VOCAB).setup_seconds(row) == 0, "an encoder that the target has"
    assert DraftModel(TorchModel(build("llama", num_hidden_layers=1)), 97).setup_seconds(row) == 0
    with pytest.raises(ValueError, match="needs audio to listen to"):
        drafter.open([Row(Request([1]))])


def test_conditions_that_do_not_fit_are_refused(plain):
    model = TorchModel(plain)
    with pytest.raises(ValueError, match="needs audio to listen to"):
        model.check(Row(Request([1])))
    with pytest.raises(ValueError, match="have 3 mel bins, and this model reads 4"):
        model.check(Row(Request([1], condition=whispers.Condition(torch.zeros(3, 12)))))
    with pytest.raises(ValueError, match="reads text only"):
        TorchModel(build("llama")).check(Row(Request([1], condition=whispers.condition(0))))


def test_blocks_cannot_be_skipped(plain):
    model, none = TorchModel(plain), torch.zeros(0, dtype=torch.long)
    row = Row(Request([1], condition=whispers.condition(0)))
    model.open([row])
    draft, skipped = Draft(Tree.chains([0]), none, OneHot(none, VOCAB)), SkippedBlocks(frozenset({0}), frozenset())
    with pytest.raises(ValueError, match="cannot be skipped"):
        model.peek([row], draft, 1, skipped)


def test_captured_encoders_and_projections_give_the_states_of_the_modules(plain, monkeypatch):
    """On a GPU, or over the same buffers without one."""
    pytest.importorskip("triton", reason="needs Triton (pip install triton)")
    from slipstream.models.run.encoder_decoder.input_graph import InputGraph

    model = copy.deepcopy(plain).to("cuda" if torch.cuda.is_available() else "cpu")
    states = CrossAttentionStates(model)
    heads, size = model.config.decoder_attention_heads, model.config.d_model
    monkeypatch.setattr(states, "_captured", lambda given: InputGraph)
    with torch.inference_mode():
        for seed in range(3):
            condition = whispers.condition(seed)
            states.open(condition)
            encoded = model.get_encoder()(condition.features[None].to(model.device))[0][0]
            for layer, block in enumerate(model.get_decoder().layers):
                for found, part in zip(states.of(condition, layer), ("k_proj", "v_proj"), strict=True):
                    flat = getattr(block.encoder_attn, part)(encoded)
                    assert torch.equal(found, flat.view(1, -1, heads, size // heads).transpose(1, 2))
            assert condition.seconds > 0
        short = torch.randn(3, size, device=model.device)  # another size
        assert states.project(short).shape == (2 * model.config.decoder_layers, heads, 3, size // heads)


@pytest.mark.parametrize("failing", ["capture", "numbers"])
def test_a_decoder_that_cannot_be_captured_runs_as_it_is(plain, monkeypatch, failing):
    """With a warning: when it is loaded, or later."""
    pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")
    from slipstream.models.run.encoder_decoder import gpu_decoder

    model, row = TorchModel(copy.deepcopy(plain)), Row(Request([1, 2], condition=whispers.condition(0)))

    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    if failing == "numbers":
        monkeypatch.setattr(gpu_decoder, "_deviations", lambda *_: (0.5, 0.2))
        with pytest.warns(RuntimeWarning, match=r"without CUDA graphs \(its logits differ by 5.0e-01, .* 2.0e-01\)"):
            assert gpu_decoder.cross_decoder(model.model, model.rows, model.forward_pass._states) is None
        monkeypatch.setattr(gpu_decoder, "_deviations", lambda *_: (0.25, 0.2))  # it rounds as its own modules do
        assert gpu_decoder.cross_decoder(model.model, model.rows, model.forward_pass._states) is not None
        return
    run_captured(model)
    monkeypatch.setattr(gpu_decoder.CrossPass, "run", fail)
    model.open([row])
    none = torch.zeros(0, dtype=torch.long)
    with pytest.warns(RuntimeWarning, match="without CUDA graphs now"):
        scores = model.score([row], Draft(Tree.chains([0]), none, OneHot(none, VOCAB)))
    assert model.decoder is None
    assert apart(scores.logits, logits_of(plain, row, [])[None]) < 1
