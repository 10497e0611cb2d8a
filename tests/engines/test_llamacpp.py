"""What the stream of llama.cpp's server leaves out is put back."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from slipstream.core.sampling import Sampling
from slipstream.engines import open_engine
from slipstream.engines.llamacpp.native_build import find_build
from slipstream.engines.llamacpp.stream import ByteVocabulary, StreamCycle, StreamReader, error_message, events
from slipstream.models.text.codec import TextCodec
from slipstream.plan.ir.build import build_plan

REPEATING = "List the numbers from one to twenty in words, then list them again."  # the model repeats digits

needs_llamacpp = pytest.mark.skipif(
    find_spec("xllamacpp") is None and find_build("") is None, reason="neither a native build nor xllamacpp is here"
)


def byte_text() -> TextCodec:
    """Byte-level: every byte a token, and the two first bytes of an emoji one token more."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: i for i, letter in enumerate(alphabet)}
    words["ðŁ"] = len(words)
    made = Tokenizer(models.BPE(words, [("ð", "Ł")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=made, eos_token="!"))


def event(tokens, content, predicted, ms, drafted=0, accepted=0, **more):
    timings = {"predicted_ms": ms, "draft_n": drafted, "draft_n_accepted": accepted}
    return {"tokens": tokens, "content": content, "tokens_predicted": predicted, "timings": timings, **more}


def read(reader: StreamReader, *found) -> list[StreamCycle]:
    return [cycle for one in found for cycle in reader.feed(one)] + list(reader.flush())


def test_tokens_of_one_cycle_share_a_time_stamp():
    cycles = read(
        StreamReader(ByteVocabulary(byte_text())),
        event([5], "a", 1, 0.001),
        event([6], "b", 2, 50.0, 3, 2),
        event([7], "c", 3, 50.0, 3, 2),
        event([8], "d", 4, 50.0, 3, 2),
        event([9], "e", 5, 70.0, 3, 2),
        event([], "", 5, 70.0, 3, 2, stop=True),
    )
    assert [(c.tokens, c.drafted, c.accepted) for c in cycles] == [([5], 0, 0), ([6, 7, 8], 3, 2), ([9], 0, 0)]


@pytest.mark.parametrize("letter", ["😀", "é", "日"])
def test_tokens_inside_a_character_are_found_by_its_bytes(letter):
    text = byte_text()
    whole = text.tokenizer.encode(letter)
    reader = StreamReader(ByteVocabulary(text))
    (cycle,) = read(reader, event(whole[-1:], letter, len(whole), 1.0))
    assert cycle.tokens == whole


def test_another_way_to_cut_a_character_is_found_too():
    text = byte_text()
    single = [text.tokenizer.get_vocab()[c] for c in "ðŁĺĢ"]
    (cycle,) = read(StreamReader(ByteVocabulary(text)), event(single[-1:], "😀", 4, 1.0))
    assert cycle.tokens == single


def test_lines_that_are_no_events_are_passed_over():
    assert list(events([b"\n", b'data: {"stop": true}\n', b"data: [DONE]\n"])) == [{"stop": True}]
    assert error_message(b'{"error": {"message": "too long"}}') == "too long"
    assert error_message(b"oops") == "oops"


@needs_llamacpp
def test_models_and_types_it_cannot_run_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds 0 of them"):
        open_engine("llamacpp", str(tmp_path), "none")
    with pytest.raises(ValueError, match=r"own format"):
        open_engine("llamacpp", "smollm2-135m", "none", dtype="float32")
    with pytest.raises(ValueError, match="it offers none, draft_model, ngram"):
        open_engine("llamacpp", "smollm2-135m", "eagle")


@needs_llamacpp
@pytest.mark.model
def test_a_lowered_plan_says_what_plain_decoding_says():
    plans = build_plan("smollm2-135m"), build_plan("smollm2-135m", "ngram", options={"longest": 3}, depth=4)
    (plain,), (lowered,) = map(_generated, plans)
    assert lowered.token_ids == plain.token_ids
    assert sum(lowered.stats.drafted)


def _generated(plan):
    with open_engine("llamacpp", "smollm2-135m", plan=plan, options={"threads": 1}) as engine:  # others wait busily
        return engine.generate(REPEATING, Sampling(0), max_tokens=64)
