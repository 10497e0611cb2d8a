"""A draft model with another tokenizer reads the target's text in its own tokens and leaves the loop exact."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import letters
import letters_folder
from alphabets import SPECIALS, byte_level, sentencepiece
from slipstream.audit.tables.enumeration import outcomes
from slipstream.core.loop import decode
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.build import build_drafter
from slipstream.drafters.translated import map_cache
from slipstream.drafters.translated.drafter import TranslatedDraft
from slipstream.drafters.translated.retokenizer import Retokenizer
from slipstream.drafters.translated.string_drafter import StringDraft
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.text.codec import TextCodec
from slipstream.models.text.token_map import TokenMap
from slipstream.plan.policy.policies import Fixed
from tiny import build


def other_bytes() -> PreTrainedTokenizerFast:
    """Byte-level BPE with other merges and other ids than `byte_level`."""
    merges = [("l", "o"), ("o", "r"), ("l", "l"), ("Ġ", "w"), ("Ġw", "or"), ("Ã", "¤")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    words = [*("".join(pair) for pair in merges), *alphabet, "<|im_end|>", "<extra>"]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")


def single_letters(tokens: list[str]) -> TextCodec:
    made = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=tokens[-1]))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=made))


TARGET, DRAFT = TextCodec(byte_level()), TextCodec(other_bytes())
PIECES = TextCodec(sentencepiece())


def test_the_map_pairs_tokens_that_are_spelt_alike():
    tokens = TokenMap.of(TARGET, DRAFT)
    spelt = {
        TARGET.token(i): DRAFT.token(j) for i, j in zip(tokens.target.tolist(), tokens.draft.tolist(), strict=True)
    }
    assert all(mine == other for mine, other in spelt.items())
    assert {"ll", "Ġw", "a", "<|im_end|>"} <= spelt.keys()
    assert not {"he", "hell", *SPECIALS[:2]} & spelt.keys()
    assert len(spelt) == 256 + 3
    assert tokens.share == pytest.approx(259 / 264)
    assert bool((np.diff(tokens.target) > 0).all())


def test_words_and_bytes_of_two_families():
    tokens = TokenMap.of(PIECES, TextCodec(byte_level(("Ġa", "ab"))))
    words = {PIECES.token(i) for i in tokens.target.tolist()}
    assert {"▁a", "ab", "a", ".", "▁", "<0x0A>"} <= words
    assert not {"▁b", "é"} & words
    assert "<0x61>" not in words, "a letter that has a token of its own is not written as a byte"


IDS = st.lists(st.integers(0, 263), max_size=60)


@settings(deadline=None)
@given(IDS)
def test_any_tokens_of_the_target_keep_their_bytes(ids):
    """Single bytes in any order, so parts of characters and bytes that are no text are among them."""
    special = [TARGET.is_special(i) for i in ids]
    tokens = Retokenizer(TARGET, DRAFT).tokens(ids)
    assert b"".join(map(DRAFT.spelling, tokens)) == b"".join(map(TARGET.spelling, ids))
    text = b"".join(map(TARGET.spelling, ids))
    if not any(special) and text.decode(errors="replace").encode() == text:
        assert tokens == DRAFT.tokenizer.encode(text.decode(), add_special_tokens=False)


def test_a_text_that_ends_inside_a_character():
    ids = TARGET.encode("hä", raw=True)
    assert [DRAFT.spelling(i) for i in Retokenizer(TARGET, DRAFT).tokens(ids)] == [b"h", "ä".encode()]
    assert [DRAFT.spelling(i) for i in Retokenizer(TARGET, DRAFT).tokens(ids[:-1])] == [b"h", "ä".encode()[:1]]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(["hello world\n", " low", "x", "ä", " ", "…\n"]), min_size=40, max_size=80))
def test_a_growing_text_is_tokenized_as_at_once(parts):
    growing, text = Retokenizer(TARGET, DRAFT), ""
    for part in parts:
        text += part
        ids = TARGET.encode(text, raw=True)
        assert growing.tokens(ids) == DRAFT.tokenizer.encode(text, add_special_tokens=False)
    growing.rewind(3)
    assert growing.tokens(ids[:3]) == Retokenizer(TARGET, DRAFT).tokens(ids[:3])


def test_only_the_end_of_a_long_text_is_tokenized_again():
    text = TARGET.encode("hello low world\n" * 40, raw=True)
    lengths, encode, spy = list[int](), DRAFT.encode_bytes, TextCodec(other_bytes())
    spy.encode_bytes = lambda data, begin: lengths.append(len(data)) or encode(data, begin)
    retokenizer = Retokenizer(TARGET, spy)
    for end in range(200, len(text), 8):
        retokenizer.tokens(text[:end])
    assert max(lengths[4:]) < 200


def drafter(**more) -> TranslatedDraft:
    vocab = len(DRAFT.tokenizer)
    model = build("llama", num_hidden_layers=1, vocab_size=vocab, **more)
    return TranslatedDraft(TorchModel(model), 264, TokenMap.of(TARGET, DRAFT), TARGET, DRAFT)


def plain(model, ids):
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            return model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    finally:
        model.set_attn_implementation("slipstream")


def test_the_law_is_the_draft_models_own_on_the_common_tokens():
    draft_model, tokens = drafter(), TokenMap.of(TARGET, DRAFT)
    draft_id = dict(zip(tokens.target.tolist(), tokens.draft.tolist(), strict=True))
    rows = [Row(Request(TARGET.encode(text, raw=True), Sampling(0.7, seed=1))) for text in ("hello wor", "ä")]
    draft_model.open(rows)
    draft = draft_model.propose(rows, [Budget(3)] * 2, CounterNoise(rows, [False] * 2))
    for r, row in enumerate(rows):
        path = Retokenizer(TARGET, DRAFT).tokens(row.tokens)
        for node in (draft.tree.row == r).nonzero()[:, 0].tolist():
            expected = torch.zeros(264)
            expected[tokens.target] = (plain(draft_model.model.model, path)[tokens.draft] / 0.7).softmax(-1)
            torch.testing.assert_close(draft.law.dense()[node], expected, atol=1e-5, rtol=1e-3)
            path.append(draft_id[int(draft.token[node])])


class Anew(TranslatedDraft):
    """Makes its rows anew for each draft, so that it has no cache that could be wrong."""

    def propose(self, rows, budget, noise):
        self.close(rows)
        self.open(rows)
        return super().propose(rows, budget, noise)


def texts(draft_model: TranslatedDraft | StringDraft, rule: str, policy: Fixed, sampling: Sampling) -> list[list[int]]:
    prompts = [TARGET.encode(text, raw=True) for text in ("hello world", "ä low")]
    rows = [Row(Request(prompt, sampling, 16 + i)) for i, prompt in enumerate(prompts)]
    for _ in decode(rows, TorchModel(build("llama", vocab_size=264)), draft_model, rules.get(rule)(), policy):
        draft_model.model.check_integrity()
    assert not draft_model.model.rows
    return [row.output for row in rows]


@pytest.mark.parametrize(("rule", "shape"), [("block", None), ("no_replace", Shape.levels([2, 2]))])
def test_the_cache_follows_the_text(rule, shape):
    """A target that emits any bytes, most of which form no characters."""
    anew = drafter()
    anew.__class__ = Anew
    kept, fresh = (texts(each, rule, Fixed(2, shape=shape), Sampling(seed=4)) for each in (drafter(), anew))
    assert kept == fresh


def test_greedy_and_coupled_texts_are_those_of_plain_decoding():
    for rule, sampling in (("greedy", Sampling(temperature=0)), ("coupled", Sampling(seed=3))):
        assert texts(drafter(), rule, Fixed(3), sampling) == texts(drafter(), rule, Fixed(0), sampling)


@pytest.mark.parametrize(("rule", "level"), [("token", "token"), ("block", "token"), ("block", "string")])
def test_two_cycles_with_two_tokenizers_have_the_targets_joint_law(rule, level):
    """Every outcome of every draw, where each vocabulary has a letter that the other lacks."""
    small = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    mine, others = single_letters(["a", "b", "c"]), single_letters(["b", "d", "a", "?"])
    target = TorchModel(build("llama", vocab_size=3, **small).double())
    own = TorchModel(build("llama", vocab_size=4, num_hidden_layers=1, **small).double())
    tokens = TokenMap.of(mine, others) if level == "token" else None
    draft_model = TranslatedDraft(own, 3, tokens, mine, others) if tokens else StringDraft(own, 3, mine, others)

    def run(rows, noise):
        loop = decode(rows, target, draft_model, rules.get(rule)(), Fixed(1), noise)
        for _ in range(2):
            next(loop)
        loop.close()

    observed: dict[tuple[int, ...], float] = defaultdict(float)
    for outcome in outcomes(lambda: Row(Request([0, 1], Sampling(1.5), 1000)), run):
        assert not outcome.faults
        observed[tuple(outcome.row.output[:2])] += outcome.prob
    for first in range(3):
        for second in range(3):
            laws = [plain(target.model, ids).double() / 1.5 for ids in ([0, 1], [0, 1, first])]
            expected = laws[0].softmax(-1)[first] * laws[1].softmax(-1)[second]
            assert observed[first, second] == pytest.approx(float(expected), abs=1e-7)


def strings(target: TextCodec = TARGET, draft: TextCodec = DRAFT, vocab: int = 264) -> StringDraft:
    model = build("llama", num_hidden_layers=1, vocab_size=len(draft.tokenizer))
    return StringDraft(TorchModel(model), vocab, target, draft)


def test_strings_are_the_greedy_text_of_the_draft_model():
    drafter, rows = strings(), [Row(Request(TARGET.encode(text, raw=True))) for text in ("hello wor", "ä")]
    drafter.open(rows)
    draft = drafter.propose(rows, [Budget(4), Budget(2)], CounterNoise(rows, [False] * 2))
    for r, (row, depth) in enumerate(zip(rows, (4, 2), strict=True)):
        path = Retokenizer(TARGET, DRAFT).tokens(row.tokens)
        start = len(path)
        for _ in range(depth):
            path.append(int(plain(drafter.model.model, path).argmax()))
        text = b"".join(map(TARGET.spelling, draft.token[draft.tree.row == r].tolist()))
        assert text
        assert b"".join(map(DRAFT.spelling, path[start:])).startswith(text)
    draft.law.check()


@pytest.mark.parametrize(
    ("rule", "sampling"),
    [("greedy", Sampling(temperature=0)), ("coupled", Sampling(seed=3))],
    ids=["greedy", "coupled"],
)
def test_with_strings_the_text_is_that_of_plain_decoding(rule, sampling):
    assert texts(strings(), rule, Fixed(3), sampling) == texts(strings(), rule, Fixed(0), sampling)


def test_the_cache_of_strings_follows_the_text():
    """A draft after several cycles equals the first draft for the same text."""
    drafter, fresh = strings(), strings()
    row = Row(Request(TARGET.encode("hello world low", raw=True), max_tokens=50))
    drafter.open([row])
    for added in ("lo", " wor", "h", "ll"):
        drafter.propose([row], [Budget(3)], CounterNoise([row], [False]))
        row.tokens += TARGET.encode(added, raw=True)
        drafter.model.check_integrity()
    fresh.open([row])
    drafts = [each.propose([row], [Budget(3)], CounterNoise([row], [False])) for each in (drafter, fresh)]
    assert drafts[0].token.tolist() == drafts[1].token.tolist()
    (state,) = drafter.model.rows.states.values()
    assert len(state.tokens) >= len(Retokenizer(TARGET, DRAFT).tokens(row.tokens)), "the text itself is cached"


def test_tokens_that_span_the_end_of_the_text_are_not_drafted_wrongly():
    """`he` + `ll` is `hell` for the target, whose committed token is `he`: then the added text stands alone."""
    drafter = strings()
    row = Row(Request([TARGET.tokenizer.convert_tokens_to_ids("he")]))
    ids = DRAFT.tokenizer.encode("llo", add_special_tokens=False)
    assert [TARGET.token(i) for i in drafter._in_target_tokens(row, ids)] == ["ll", "o"]
    row = Row(Request(TARGET.encode("x", raw=True)))
    assert [TARGET.token(i) for i in drafter._in_target_tokens(row, DRAFT.encode(" wor", raw=True))] == ["Ġw", "o", "r"]


def test_the_map_is_stored_once_and_a_damaged_one_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    first = map_cache.token_map(TARGET, DRAFT)
    (path,) = (tmp_path / "token_maps").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(TokenMap, "of", lambda *_: pytest.fail("it is stored"))
        again = map_cache.token_map(TARGET, DRAFT)
    assert (again.target.tolist(), again.draft.tolist()) == (first.target.tolist(), first.draft.tolist())
    assert again.share == pytest.approx(first.share, abs=1e-6)
    for damage in (b"", path.read_bytes()[:-8], b"text"):
        path.write_bytes(damage)
        assert map_cache.token_map(TARGET, DRAFT).target.tolist() == first.target.tolist()
    map_cache.token_map(DRAFT, TARGET)
    assert len(list((tmp_path / "token_maps").iterdir())) == 2


def folder_with(path: Path, tokens: list[str]) -> Path:
    """The letters' model in a folder with another tokenizer of as many tokens."""
    letters_folder.write(path)
    single_letters([*tokens, *(f"{n}{n}" for n in range(19 - len(tokens)))]).tokenizer.save_pretrained(path)
    return path


def test_a_model_with_another_tokenizer_drafts_and_says_how_much(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    target = letters.target()
    built = build_drafter(str(folder_with(tmp_path / "other", ["<", "p", "o", "n", "a"])), target)
    assert isinstance(built, TranslatedDraft)
    assert "another tokenizer than letters, so it drafts 21.1% of the target's tokens" in capsys.readouterr().err
    strings = build_drafter("draft_model", target, {"model": str(tmp_path / "other"), "level": "string"})
    assert isinstance(strings, StringDraft)
    with pytest.raises(ValueError, match=r"level is string, and .* has the target's tokenizer; leave the option out"):
        build_drafter("draft_model", target, {"model": str(letters_folder.write(tmp_path / "same")), "level": "string"})
    with pytest.raises(ValueError, match="option level of draft_model is 'word'; it must be token or string"):
        build_drafter("draft_model", target, {"level": "word"})
    with pytest.raises(ValueError, match=r"cannot draft for letters: it has another tokenizer, which has 0\.0% of the"):
        build_drafter(str(folder_with(tmp_path / "hopeless", ["X", "Y"])), target)
