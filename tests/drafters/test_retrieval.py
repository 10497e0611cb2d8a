"""The index of a corpus finds what a search finds, opens without reading, and refuses what it cannot use."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import letters
import letters_folder
import slipstream as ss
from slipstream.drafters.build import build_drafter
from slipstream.drafters.retrieval.corpus_index import SIZES, CorpusIndex, common_path
from slipstream.drafters.retrieval.drafter import Retrieval, save_index
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.text.codec import fingerprint
from slipstream.train.retrieval import index_corpus

TEXT = st.lists(st.integers(0, 2), max_size=14)


def searched(documents: list[list[int]], text: list[int], depth: int) -> list[list[int]]:
    """The continuations of the longest suffix of a size that is looked up, by a search of all documents."""
    best: list[list[int]] = []
    for size in SIZES:
        suffix = text[-size:]
        found = [
            document[i + size : i + size + depth]
            for document in documents
            for i in range(len(document) - size + 1)
            if len(suffix) == size and document[i : i + size] == suffix
        ]
        if not found:
            break
        best = found
    return best


@given(st.lists(TEXT, min_size=1, max_size=3), TEXT, st.integers(1, 4))
def test_the_index_finds_what_a_search_finds(documents, text, depth):
    index = CorpusIndex.build(documents, 3)
    assert sorted(index.continuations(text, depth)) == sorted(searched(documents, text, depth))


def test_the_most_frequent_continuation_is_drafted():
    assert common_path([[1, 2, 3], [1, 2, 4], [5], [1, 2, 4], []]) == [1, 2, 4]
    assert common_path([[]]) == []
    assert CorpusIndex.build([[1, 2, 3, 4]], 5).continuations([9, 9], 2) == [], "a token beyond the vocabulary"


@pytest.fixture
def folder(tmp_path) -> Path:
    index = CorpusIndex.build([list(range(3, 19)) * 5000], len(letters.TOKENS))
    save_index(tmp_path / "corpus", index, len(letters.TOKENS), {"tokenizer": fingerprint(letters.tokenizer())})
    return tmp_path / "corpus"


def test_a_folder_is_opened_in_milliseconds_and_drafts(folder):
    target = letters.target()
    began = time.process_time()
    drafter = build_drafter(str(folder), target)
    assert time.process_time() - began < 0.5
    assert isinstance(drafter, Retrieval)
    assert drafter.index.continuations([3, 4], 3)[0] == [5, 6, 7]
    with NativeEngine(target, str(folder), depth=3) as engine:
        options = {"max_tokens": 24, "ignore_eos": True, "raw": True}
        plain = engine.generate("abcd", ss.Sampling(0), **options, speculation=ss.Speculation(off=True))[0]
        done = engine.generate("abcd", ss.Sampling(0), **options)[0]
    assert done.token_ids == plain.token_ids
    assert sum(done.stats.drafted)


def test_what_is_no_index_of_this_model_is_refused(folder):
    target = letters.target()
    with pytest.raises(ValueError, match="retrieval needs a corpus; index one with slipstream train retrieval"):
        build_drafter("retrieval", target)
    (folder / "order.bin").write_bytes(b"1234")
    with pytest.raises(ValueError, match=r"order.bin has 1 numbers and should have 80001; build the index again"):
        build_drafter(str(folder), target)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"tokenizer": "', '"tokenizer": "x'))
    with pytest.raises(ValueError, match="was indexed with another tokenizer"):
        build_drafter(str(folder), target)


def test_files_are_indexed_and_bad_ones_refused_in_one_sentence(tmp_path):
    model = str(letters_folder.write(tmp_path / "letters"))
    text, binary, empty = tmp_path / "a.txt", tmp_path / "b.bin", tmp_path / "c.txt"
    text.write_text("abcdefgh")
    binary.write_bytes(b"\xff\xfe")
    empty.write_text("")
    assert index_corpus(model, [text, empty], tmp_path / "out").size == 10
    for corpus, said in {
        (): "retrieval needs a corpus",
        (binary,): "b.bin is not UTF-8 text",
        (tmp_path,): "cannot read the corpus .*: Is a directory",
        (tmp_path / "none",): "cannot read the corpus .*none: No such file or directory",
        (empty,): "the corpus has no text",
    }.items():
        with pytest.raises(ValueError, match=said):
            index_corpus(model, corpus, tmp_path / "out")
