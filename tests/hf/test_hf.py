"""`ss.hf.generate` beside plain `generate` of the same model: the same tokens, the same law, the same types."""

from __future__ import annotations

import gc
import itertools
import string
import threading
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
    WatermarkingConfig,
)
from transformers.generation import BaseStreamer, GenerateDecoderOnlyOutput
from transformers.generation import logits_process as steps

from heads import head
from slipstream import hf
from slipstream.audit.statistical import fit
from slipstream.drafters.eagle.folder import save_head
from slipstream.drafters.files.net_folder import save_net
from slipstream.hf import borrow
from slipstream.models.run import torch_model
from state_heads import random_net

VOCAB = 61
IDS = torch.tensor([[0, 0, 5, 6, 7, 5, 6], [9, 8, 7, 6, 5, 9, 8], [0, 3, 4, 5, 3, 4, 5]])
LEFT = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}
ENDS = [2, 14, 32]  # tokens the tiny models like, so that rows end at different times


def build(kind: str = "llama", seed: int = 0, **more: Any) -> Any:
    """A tiny model whose weights are large enough for attention to matter."""
    config = AutoConfig.for_model(
        kind,
        **{
            "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **more,
        },
    )  # fmt: skip
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.3)
    return model


@pytest.fixture(scope="module")
def llama() -> Any:
    return build()


@pytest.fixture(scope="module")
def gpt2() -> Any:
    return build("gpt2")


def ours(model: Any, **asked: Any) -> Any:
    return model.generate(**{"max_new_tokens": 12, "custom_generate": hf.generate, **LEFT, **asked})


def plain(model: Any, **asked: Any) -> Any:
    return model.generate(**{"max_new_tokens": 12, **LEFT, **asked})


class NoEcho(LogitsProcessor):
    """Depends on what stands before the place, and works in place as some users' processors do."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[torch.arange(len(scores)), input_ids[:, -1]] = -torch.inf
        scores[:, input_ids.shape[1]] += 3.0
        return scores


class StopAt(StoppingCriteria):
    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.isin(input_ids[:, -1], input_ids.new_tensor(self.tokens))


GREEDY: dict[str, dict[str, Any]] = {
    "nothing": {},
    "ends": {"eos_token_id": ENDS},
    "ends in a tensor": {"eos_token_id": torch.tensor([14, 2]), "pad_token_id": 60},
    "never ends": {"eos_token_id": -1},
    "max_length": {"max_new_tokens": None, "max_length": 13, "eos_token_id": ENDS},
    "min_new_tokens": {"min_new_tokens": 6, "eos_token_id": ENDS},
    "min_length": {"min_length": 11, "eos_token_id": ENDS},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "bad_words_ids": {"bad_words_ids": [[15], [58], [2]], "eos_token_id": ENDS},
    "longer bad words": {"bad_words_ids": [[15, 58], [58], [3, 59]]},
    "suppress_tokens": {"suppress_tokens": [15, 58, 28, 1]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [15, 58, 28, 1]},
    "sequence_bias": {"sequence_bias": {(15,): -2.0, (40,): 4.0}},
    "longer bias": {"sequence_bias": {(15, 3): 9.0, (58, 7): 9.0, (40,): 1.0}},
    "bias and penalty": {"sequence_bias": {(40,): 4.0, (20,): 3.0}, "repetition_penalty": 1.5, "suppress_tokens": [1]},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "forced": {"forced_bos_token_id": 4, "forced_eos_token_id": 2},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (3, 1.2), "eos_token_id": ENDS},
    "harmless": {"renormalize_logits": True, "remove_invalid_values": True, "prefill_chunk_size": 3},
    "prefix": {"prefix_allowed_tokens_fn": lambda row, ids: [20 + row, 30 + row, 40 + len(ids)]},
    "processor": {"logits_processor": LogitsProcessorList([NoEcho()]), "repetition_penalty": 1.2},
    "own temperature": {"logits_processor": [steps.TemperatureLogitsWarper(0.5), NoEcho()]},
    "criterion": {"stopping_criteria": StoppingCriteriaList([StopAt(3, 8, 18)])},
}  # fmt: skip


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_rows_are_those_of_plain_generate(name: str, llama: Any):
    expected = plain(llama, **GREEDY[name])
    assert ours(llama, **GREEDY[name], drafter="ngram", depth=4).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["min_length", "bias and penalty", "prefix", "processor", "criterion"])
def test_all_that_is_drafted_is_kept_where_the_model_drafts_for_itself(name: str, llama: Any):
    """The draft goes through the same processors at the same places, so nothing of it may be rejected."""
    passes: list[Any] = []
    with llama.register_forward_hook(lambda *_: passes.append(1)):
        found = ours(llama, **GREEDY[name], drafter=llama, depth=5)
    assert found.tolist() == plain(llama, **GREEDY[name]).tolist()
    assert len(passes) < 24  # two passes of six tokens, the draft's own steps, and the probe


@pytest.mark.parametrize("more", [{}, {"drafter": "none"}, {"depth": 0}, {"drafter": "ngram"}, {"verify": "block"}])
def test_other_ways_to_draft(more: dict[str, Any], gpt2: Any):
    asked = {"eos_token_id": ENDS, "repetition_penalty": 1.3}
    assert ours(gpt2, **asked, **more).tolist() == plain(gpt2, **asked).tolist()


def test_right_padding_continues_the_text_of_each_row(llama: Any):
    ids = torch.tensor([[5, 6, 7, 5, 0, 0], [9, 8, 7, 6, 5, 9], [3, 4, 0, 0, 0, 0]])
    out = ours(llama, input_ids=ids, attention_mask=(ids != 0).long(), drafter="ngram", depth=3)
    assert torch.equal(out[:, :6], ids)
    for row, given in zip(out, ids, strict=True):
        alone = plain(llama, input_ids=given[given != 0][None], attention_mask=None)[0, (given != 0).sum() :].tolist()
        assert row[6:].tolist() == alone + [0] * (12 - len(alone))


def test_the_mask_may_be_left_to_transformers(llama: Any):
    assert torch.equal(ours(llama, attention_mask=None), plain(llama))
    assert torch.equal(ours(llama, input_ids=IDS[1:2], attention_mask=None), plain(llama)[1:2])


def letters() -> Any:
    """A tokenizer for the tiny models: one character a token."""
    characters = string.ascii_letters + string.digits
    tokenizer = Tokenizer(models.BPE({characters[i]: i for i in range(VOCAB)}, []))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_stop_strings(llama: Any):
    tokenizer = letters()
    texts = tokenizer.batch_decode(plain(llama)[:, IDS.shape[1] :])
    asked = {"stop_strings": [texts[1][3:5], texts[2][6]], "tokenizer": tokenizer}
    expected = plain(llama, **asked)
    assert (expected == 0).sum() > 3  # some row did stop early
    assert ours(llama, **asked, depth=4).tolist() == expected.tolist()
    with pytest.raises(ValueError, match="stop_strings"):
        ours(llama, stop_strings=["a"])


def test_max_time_ends_every_row(llama: Any):
    assert ours(llama, max_time=0.0, drafter="none").shape == (3, IDS.shape[1] + 1)


def test_a_row_that_stops_needs_padding(llama: Any):
    asked = {"stopping_criteria": [StopAt(3)], "eos_token_id": None, "pad_token_id": None}
    model = build()
    model.generation_config = GenerationConfig()
    with pytest.raises(ValueError, match="pad_token_id"):
        ours(model, **asked)
    alone = {"input_ids": IDS[1:2], "attention_mask": None}
    assert torch.equal(ours(model, **asked, **alone), plain(model, **asked, **alone))


class Heard(BaseStreamer):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.heard.append(value.tolist())

    def end(self) -> None:
        self.heard.append("end")


@pytest.mark.parametrize("rows", [1, 3])
def test_a_streamer_hears_the_same(rows: int, llama: Any):
    asked = {"input_ids": IDS[-rows:], "attention_mask": LEFT["attention_mask"][-rows:], "eos_token_id": ENDS}
    heard = Heard(), Heard()
    plain(llama, **asked, streamer=heard[0])
    ours(llama, **asked, streamer=heard[1], drafter="ngram", depth=4)
    assert heard[0].heard == heard[1].heard
    assert len(heard[0].heard) > 3


def test_text_is_streamed_from_another_thread(llama: Any):
    tokenizer = letters()
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=30)
    row = {"input_ids": IDS[1:2], "attention_mask": None}
    thread = threading.Thread(target=ours, args=(llama,), kwargs={**row, "streamer": streamer})
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == tokenizer.decode(plain(llama, **row)[0, IDS.shape[1] :])


def test_the_record(llama: Any):
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True, "eos_token_id": ENDS}
    asked |= {"repetition_penalty": 1.3, "min_new_tokens": 3}
    expected, found = plain(llama, **asked), ours(llama, **asked, depth=4)
    assert type(found) is type(expected) is GenerateDecoderOnlyOutput
    assert torch.equal(found.sequences, expected.sequences)
    new = expected.sequences[:, IDS.shape[1] :]
    alive = torch.isin(new, torch.tensor(ENDS)).cumsum(1).roll(1, 1).index_fill(1, torch.tensor(0), 0) == 0
    for kind in ("scores", "logits"):
        mine, theirs = getattr(found, kind), getattr(expected, kind)
        assert len(mine) == len(theirs) == new.shape[1]
        for step, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            torch.testing.assert_close(a[alive[:, step]], b[alive[:, step]], atol=1e-4, rtol=1e-4)
            assert not a[~alive[:, step]].any()
    bare = ours(llama, return_dict_in_generate=True)
    assert bare.scores is None
    assert bare.logits is None
    assert not bare.sequences.is_inference()


def test_criteria_see_scores_where_they_are_asked_for(llama: Any):
    class Unsure(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return scores[-1].softmax(-1).amax(-1) < 0.25

    asked = {"stopping_criteria": [Unsure()], "return_dict_in_generate": True, "output_scores": True}
    expected = plain(llama, **asked)
    assert ours(llama, **asked, depth=3).sequences.tolist() == expected.sequences.tolist()


def test_several_sequences_of_a_prompt(llama: Any):
    out = ours(llama, do_sample=True, num_return_sequences=4, seed=3)
    assert out.shape[0] == 12
    assert torch.equal(out[:, : IDS.shape[1]], IDS.repeat_interleave(4, 0))
    assert len({tuple(row) for row in out.tolist()}) == 12


def test_one_seed_repeats(llama: Any):
    def draw(**more: Any) -> list[list[int]]:
        torch.manual_seed(5)
        found: list[list[int]] = ours(llama, do_sample=True, **more).tolist()
        return found

    assert draw() == draw() == draw(drafter="none") == draw(drafter=llama, depth=2)  # coupled, whatever drafts
    assert draw(verify="block", depth=3) == draw(verify="block", depth=3)
    assert draw(seed=1) != draw(seed=2)
    torch.manual_seed(6)
    assert ours(llama, do_sample=True).tolist() != draw()


LAWS = {
    "token": {"verify": "token", "temperature": 1.5},
    "block": {"verify": "block", "temperature": 0.8, "top_k": 4, "top_p": 0.8},
    "coupled": {"verify": "coupled", "top_k": 0, "min_p": 0.1, "repetition_penalty": 1.4},
    "exotic": {"verify": "block", "typical_p": 0.8, "top_k": 4, "logits_processor": [NoEcho()]},
}


@pytest.mark.parametrize("name", LAWS)
def test_two_tokens_have_their_exact_law(name: str):
    target, draft = (build(seed=seed, vocab_size=6, hidden_size=16, num_hidden_layers=1) for seed in (1, 2))
    ids, samples = torch.tensor([[3, 1, 4]]), 800
    asked = {"do_sample": True, "max_new_tokens": 2, "eos_token_id": 5, "input_ids": ids, "attention_mask": None}
    asked |= LAWS[name]
    out = ours(target, **asked, num_return_sequences=samples, drafter=draft, depth=2, seed=11)
    counts = Counter(tuple(row[3:].tolist()) for row in out)
    assert fit(counts, joint(target, ids, {k: v for k, v in asked.items() if k != "verify"})).passed


def joint(model: Any, ids: torch.Tensor, asked: dict[str, Any]) -> dict[Any, float]:
    """The law of two tokens by transformers' own processors on the model's own logits."""

    def law(ids: torch.Tensor) -> list[float]:
        step = {
            **asked,
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": 1,
            "return_dict_in_generate": True,
            "output_scores": True,
        }
        found: list[float] = model.generate(**step).scores[0][0].double().softmax(-1).tolist()
        return found

    pairs = {}
    for first, p in enumerate(law(ids)):
        after = (
            [1.0] + [0.0] * 5 if first == 5 else law(torch.cat([ids, torch.tensor([[first]])], 1)) if p else [0.0] * 6
        )
        pairs |= {(first, second): p * q for second, q in enumerate(after) if p * q > 0}
    assert abs(sum(pairs.values()) - 1) < 1e-9
    return pairs


REFUSED: dict[str, Any] = {
    "num_beams": 2,
    "early_stopping": True,
    "length_penalty": 0.5,
    "penalty_alpha": 0.6,
    "guidance_scale": 1.5,
    "prompt_lookup_num_tokens": 3,
    "num_assistant_tokens": 5,
    "watermarking_config": WatermarkingConfig(),
    "encoder_repetition_penalty": 1.5,
    "encoder_no_repeat_ngram_size": 2,
    "cache_implementation": "static",
    "use_cache": False,
    "output_hidden_states": True,
    "dola_layers": "high",
    "low_memory": True,
    "token_type_ids": torch.zeros_like(IDS),
    "position_ids": torch.arange(7).expand(3, 7) + 1,
    "past_key_values": DynamicCache(),
    "inputs_embeds": torch.zeros(3, 7, 32),
    "synced_gpus": True,
    "drafter": 3,
    "depth": -1,
    "max_new_tokens": 95,
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:The following generation flags", "ignore:.*deprecated")
def test_what_is_not_honoured_names_itself(name: str, gpt2: Any):
    with pytest.raises(ValueError, match=name):
        ours(gpt2, **{name: REFUSED[name]})


def test_other_refusals(llama: Any, gpt2: Any):
    hole = LEFT["attention_mask"].clone()
    hole[1, 3] = 0
    for why, asked in {
        "attention_mask has a hole in row 1": {"attention_mask": hole},
        "hides the whole of row 0": {"attention_mask": hole * torch.tensor([[0], [1], [1]])},
        "assistant_model": {"assistant_model": gpt2},
        "no rule called": {"verify": "blok"},
        "'greedy' and do_sample": {"verify": "greedy", "do_sample": True},
        "no drafter called": {"drafter": "ngrm", "tokenizer": object()},
        "options are": {"drafter": gpt2, "options": {"longest": "2"}},
        "no option 'deep'": {"options": {"deep": "2"}},
        "must be the same ones": {"drafter": build(vocab_size=30)},
        "GuidanceLogitsProcessor is refused": {
            "logits_processor": [steps.UnbatchedClassifierFreeGuidanceLogitsProcessor(2.0, llama)]
        },
    }.items():
        with pytest.raises(ValueError, match=why):
            ours(llama, **asked)
    with pytest.raises(ValueError, match="training mode"):
        ours(build().train())


def test_the_users_own_exception_comes_out(llama: Any):
    class Broken(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if input_ids.shape[1] > 9:
                raise KeyError("mine")
            return scores

    with pytest.raises(KeyError, match="mine"):
        ours(llama, logits_processor=[Broken()], depth=3)
    assert llama.config._attn_implementation == "sdpa"
    assert torch.equal(ours(llama), plain(llama))


@pytest.mark.parametrize("own", ["eager", "sdpa"])
def test_the_model_is_left_as_it_was(own: str, monkeypatch: pytest.MonkeyPatch):
    model, draft = build(), build("gpt2")
    model.set_attn_implementation(own)
    before = {name: id(value) for name, value in model.__dict__.items()}
    probes: list[Any] = []
    monkeypatch.setattr(torch_model, "probe", lambda model: probes.append(model) or real(model))
    for _ in range(2):
        ours(model, drafter=draft, depth=2)
        assert model.config._attn_implementation == own
        assert draft.config._attn_implementation == "sdpa"
    assert probes == [model, draft]  # once each: what it found is kept
    with pytest.raises(ValueError, match="context"):
        ours(model, max_new_tokens=90)
    assert model.config._attn_implementation == own
    assert {name: id(value) for name, value in model.__dict__.items()} == before
    model.resize_token_embeddings(VOCAB + 3)
    assert torch.equal(ours(model), plain(model))
    assert len(probes) == 3  # its modules changed


real = torch_model.probe


def test_nothing_keeps_a_model_alive():
    model = build()
    ours(model)
    gone = weakref.ref(model)
    assert model in borrow._RECORDS
    del model
    gc.collect()
    assert gone() is None


def test_two_threads_may_share_models(llama: Any):
    other = build(seed=4)
    expected = [plain(llama).tolist(), plain(other).tolist()]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        pair = (llama, other) if i % 2 == 0 else (other, llama)
        found[i] = ours(pair[0], drafter=pair[1], depth=2).tolist()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {i: expected[i % 2] for i in range(4)}


def test_a_named_draft_model(tmp_path: Any, llama: Any):
    llama.save_pretrained(tmp_path)
    letters().save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(ours(model, drafter=str(tmp_path), depth=2), plain(model))
    with pytest.raises(ValueError, match="folder the model came from"):
        ours(build(), drafter=str(tmp_path))


def test_a_trained_head(tmp_path: Any, llama: Any):
    ids = range(0, llama.config.vocab_size, 2)
    save_head(tmp_path / "head", head(llama, ids, features=(0, 1)), torch.tensor(ids))
    assert torch.equal(ours(llama, drafter=str(tmp_path / "head"), depth=3), plain(llama))
    assert torch.equal(ours(llama, drafter="eagle", options={"model": str(tmp_path / "head")}), plain(llama))


@pytest.mark.parametrize("kind", ["medusa", "mlp", "prophet"])
def test_heads_that_keep_no_cache(kind: str, tmp_path: Any, llama: Any):
    vocab = llama.config.vocab_size
    net = random_net(kind, llama.config.hidden_size, (0, 1), vocab // 2)
    save_net(tmp_path, kind, net, net.config, torch.arange(vocab // 2), about={"target_sha256": "ab" * 32})
    assert torch.equal(ours(llama, drafter=str(tmp_path), depth=3), plain(llama))


@pytest.mark.parametrize("drafter", ["early_exit", "layer_skip"])
def test_drafters_that_run_the_targets_own_layers(drafter: str, llama: Any):
    assert torch.equal(ours(llama, drafter=drafter, depth=3), plain(llama))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:You are calling .generate")  # with inputs that lie elsewhere, as is meant
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_may_lie_on_a_gpu(dtype: torch.dtype, llama: Any):
    model = build().to("cuda", dtype)
    there = {name: value.cuda() for name, value in LEFT.items()}
    asked = {"eos_token_id": ENDS, "repetition_penalty": 1.3, "return_dict_in_generate": True, "output_scores": True}
    for inputs in (there, LEFT):  # transformers takes inputs that lie beside a model on the device, too
        found = ours(model, **inputs, **asked, logits_processor=[NoEcho()], stopping_criteria=[StopAt(60)], depth=3)
        assert found.sequences.device == found.scores[0].device == inputs["input_ids"].device
    assert ours(model, **there, drafter=build(seed=2).to("cuda", dtype), depth=2, do_sample=True, seed=1).is_cuda
    if dtype == torch.float32:
        assert ours(model, **there, eos_token_id=ENDS).tolist() == plain(llama, eos_token_id=ENDS).tolist()


@pytest.mark.model
def test_the_default_model():
    from slipstream.models.sources.catalog import full_folder, resolve

    folder = full_folder(resolve("smollm2-135m").path)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    texts = ["The capital of France is", "one two three one two three one two"]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    asked = {**inputs, "max_new_tokens": 6, "repetition_penalty": 1.1}
    assert torch.equal(model.generate(**asked, custom_generate=hf.generate), model.generate(**asked))


def test_processors_are_split_where_the_order_allows():
    from slipstream.hf.processors import LeadingProcessors, split_processors

    bias = steps.SequenceBiasLogitsProcessor({(4,): 1.0})
    penalty, ban = steps.RepetitionPenaltyLogitsProcessor(1.5), steps.SuppressTokensLogitsProcessor([3, 99])
    last = [steps.TemperatureLogitsWarper(0.5), steps.TopKLogitsWarper(3), steps.TopPLogitsWarper(0.9)]

    def middle(*processors: Any, sampled: bool = True, padded: bool = False) -> list[Any]:
        return list(split_processors(processors, 0, LeadingProcessors(frozenset({2}), VOCAB, padded), sampled).middle)

    assert middle(penalty, bias, ban, *last, steps.LogitNormalization()) == []
    assert middle(bias, penalty, ban) == [penalty, ban]
    assert middle(penalty, ban, padded=True) == [penalty, ban]
    assert middle(ban, *last, sampled=False) == last
    assert middle(*last, last[0]) == last
    for some in itertools.permutations(last):
        assert (middle(*some) == []) == (list(some) == last)
    sampling = split_processors(
        (penalty, bias, ban, *last), 0, LeadingProcessors(frozenset(), VOCAB, False), True
    ).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.suppress_tokens) == (0.5, 3, 0.9, {3})
