"""Requests and engines of wrong types are refused in one sentence that says what is legal; near ones are accepted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import letters
import slipstream as ss
from slipstream.core.interfaces import Drafter
from slipstream.drafters.ngram import NGram
from slipstream.engines.native.engine import NativeEngine

SHORT = {"max_tokens": 6, "ignore_eos": True}
GREEDY = ss.Sampling(temperature=0)


@pytest.fixture(scope="module")
def engine() -> Iterator[NativeEngine]:
    with NativeEngine(letters.target(), "ngram", "coupled", depth=3) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(engine) -> list[int]:
    return engine.generate([3, 4, 5], GREEDY, **SHORT)[0].token_ids


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stop": [5]}, "stop is [5]; it must be a string or a list of strings"),
        ({"stop": b"a"}, "stop is b'a'; it must be a string or a list of strings"),
        ({"logprobs": True}, "logprobs is True; it must be an integer"),
        ({"prompt_logprobs": 101}, "prompt_logprobs is 101; it must be between 0 and 100"),
        ({"max_tokens": 5.0}, "max_tokens is 5.0; it must be an integer"),
        ({"n": 10**9}, "n is 1000000000; it must be between 1 and 4096"),
        ({"raw": "yes"}, "raw is 'yes'; it must be True or False"),
        ({"stop_token_ids": [1.5]}, "an element of stop_token_ids is 1.5; it must be an integer"),
        ({"grammar": {"json": True}}, "grammar is {'json': True}; it must be a string of EBNF rules with a root"),
        ({"regex": 3}, "regex is 3; it must be a regular expression as a string"),
        (
            {"json_schema": "object"},
            "json_schema is 'object'; it must be a schema as a dictionary, or True for any JSON",
        ),
        ({"regex": "a", "grammar": "b"}, "grammar and regex are given; a text is constrained by one of them"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos is on, and regex ends the text at an end token"),
        ({"speculation": 4}, "speculation is 4; it must be Speculation("),
        ({"temperature": 0.8}, "temperature is a parameter of sampling; pass it as ss.Sampling(temperature=…)"),
        ({"max_token": 5}, "did you mean max_tokens?"),
    ],
)
def test_a_wrong_option_of_a_request(engine, options, said):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole sentence is compared
        engine.generate("abc", GREEDY, **options)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"seed": 1.5}, "seed is 1.5; it must be an integer"),
        ({"top_k": 40.0}, "top_k is 40.0; it must be an integer"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"logit_bias": [3]}, "logit_bias is [3]; it must be a dictionary from token ids to numbers"),
        ({"logit_bias": {"3": 1.0}}, "a token of logit_bias is '3'; it must be an integer"),
        ({"suppress_tokens": "ab"}, "suppress_tokens is 'ab'; it must be a list of integers"),
        ({"repetition_penalty": "1.2"}, "repetition_penalty is '1.2'; it must be a number"),
    ],
)
def test_a_wrong_field_of_sampling(fields, said):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole sentence is compared
        ss.Sampling(**fields)
    assert said in str(refused.value)


def test_numbers_of_other_libraries_become_pythons_own():
    sampling = ss.Sampling(
        temperature=np.float32(0.5),
        top_k=torch.tensor(4),
        seed=np.int64(5),
        allowed_token_ids=[3, 4],
        logit_bias={np.int64(3): 1},
    )
    assert sampling == ss.Sampling(
        temperature=0.5, top_k=4, seed=5, allowed_token_ids=frozenset({3, 4}), logit_bias={3: 1.0}
    )
    assert [type(value) for value in (sampling.temperature, sampling.top_k, sampling.seed)] == [float, int, int]


@pytest.mark.parametrize(
    "prompt",
    [
        [3, 4, 5],
        (3, 4, 5),
        np.array([3, 4, 5]),
        torch.tensor([3, 4, 5]),
        torch.tensor([[3, 4, 5]]),
        [np.int64(3), np.int64(4), np.int64(5)],
        [torch.tensor([3, 4, 5])],
    ],
)
def test_token_ids_of_any_library(engine, expected, prompt):
    assert [done.token_ids for done in engine.generate(prompt, GREEDY, stop=None, **SHORT)] == [expected]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (b"abc", "the prompt is b'abc'; decode bytes to a string first"),
        ("a\ud800", "the prompt is not valid Unicode text"),
        (None, "the prompt is None; a prompt is a string"),
        ({"role": "user"}, "the prompt is {'role': 'user'}; a prompt is a string"),
        ([3, "a"], "the prompt is [3, 'a']; a prompt is a string"),
        (np.array([0.5]), "the prompt is [0.5]; a prompt is a string"),
    ],
)
def test_what_is_no_prompt(engine, prompt, said):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole sentence is compared
        engine.generate(prompt)
    assert said in str(refused.value)


def test_sampling_that_is_none(engine):
    with pytest.raises(ValueError, match=r"sampling is {'temperature': 0}; it must be Sampling\("):
        engine.generate("abc", {"temperature": 0})
    with pytest.raises(ValueError, match=r"options is {'max_tokens': 3}; it must be GenerationOptions\("):
        engine.submit("abc", GREEDY, {"max_tokens": 3})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tree": 8}, "the engine has no option 'tree'; it takes model, drafter"),
        ({"tree": 8}, "; use shape"),
        ({"drafter": object}, "drafter is <class 'object'>; it must be a name, a Drafter, or None for plain decoding"),
        ({"model": 5}, "model is 5; a model is a name, a folder, a GGUF file, or a loaded causal language model"),
        ({"model": torch.nn.Linear(1, 1)}, "or a loaded causal language model of transformers"),
        ({"limits": 4}, "limits is 4; it must be Limits("),
        ({"depth": "4"}, "depth is '4'; it must be an integer"),
        ({"verify": 4}, "verify is 4; it must be a name"),
        ({"options": "a=1"}, "options is 'a=1'; it must be a dictionary"),
        ({"device": "gpu"}, "device is 'gpu', which torch cannot use here; it must be auto"),
        ({"tokenizer": letters.tokenizer()}, "a model by name brings its own"),
        ({"model": letters.plain(), "dtype": "float32"}, "dtype cannot be given for a loaded model"),
        ({"model": letters.plain()}, "there is no tokenizer at the model's name_or_path, ''; pass one as tokenizer="),
        ({"model": letters.plain(), "tokenizer": "gpt2"}, "tokenizer is 'gpt2'; it must be a tokenizer"),
    ],
)
def test_what_is_no_engine(given, said):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole sentence is compared
        ss.Engine(**given)
    assert said in str(refused.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there():
    with pytest.raises(ValueError, match="device is 'cuda', which torch cannot use here; it must be auto or cpu"):
        ss.Engine(device="cuda")


def test_a_loaded_model_is_run_and_left_as_it_was(engine):
    model = letters.plain()
    before = {name: type(module) for name, module in model.named_modules()}
    with ss.Engine(model, tokenizer=letters.tokenizer(), drafter=None) as own:
        ours, theirs = (e.generate("abcabc", GREEDY, **SHORT)[0] for e in (own, engine))
        assert (ours.token_ids, ours.text) == (theirs.token_ids, theirs.text)
        assert own.label.startswith("LlamaForCausalLM (float32")
        assert own.drafter_name == "none"
        assert {name: type(module) for name, module in model.named_modules()} == before
        assert model(torch.tensor([[3, 4]])).logits.isfinite().all(), "its own attention still runs"


def test_a_loaded_model_whose_tokenizer_is_found_by_its_folder(tmp_path, engine, expected):
    letters.plain().save_pretrained(tmp_path)
    letters.tokenizer().save_pretrained(tmp_path)
    model = type(letters.plain()).from_pretrained(tmp_path)
    with ss.Engine(model, drafter="ngram") as own:
        assert own.generate([3, 4, 5], GREEDY, **SHORT)[0].token_ids == expected


def test_a_drafter_given_as_an_object():
    class Counting(NGram):
        proposals = 0

        def propose(self, rows, budget, noise):
            self.proposals += 1
            return super().propose(rows, budget, noise)

    target = letters.target()
    drafter: Drafter = Counting(target.model.vocab)
    with ss.Engine(target, drafter, "coupled", depth=3) as engine:
        (done,) = engine.generate("abcabcabc", GREEDY, **SHORT)
        (plain,) = engine.generate("abcabcabc", GREEDY, speculation=ss.Speculation(off=True), **SHORT)
        assert done.token_ids == plain.token_ids
        assert drafter.proposals
        assert sum(done.stats.drafted)
        assert engine.drafter_name == "Counting"
    with pytest.raises(ValueError, match="a drafter given as an object takes none"):
        ss.Engine(letters.target(), drafter, options={"min": "2"})
