"""Streamed text is broken between words, wherever its pieces end."""

from __future__ import annotations

import random

import pytest

from slipstream.cli.output.word_wrap import WordWrap

STORY = "The quick brown fox jumps over the lazy dog, again and again.\n\n  - indented item that is rather long\n"
CODE = "Look:\n```python\nreturn a_long_name + another_long_name + yet_another\n```\nand that was the whole of it.\n"
CJK = "日本語の文章には空白がありませんので、どこでも改行できます。"


def shown(text: str, width: int, pieces: int = 1) -> str:
    rng = random.Random(len(text) + pieces)
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(pieces - 1))
    wrap = WordWrap(width)
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return "".join(wrap.feed(part, "green").plain for part in parts) + wrap.flush().plain


@pytest.mark.parametrize("pieces", [1, 7, 40])
def test_lines_end_between_words(pieces):
    lines = shown(STORY, 20, pieces).split("\n")
    assert max(map(len, lines)) <= 20
    assert " ".join(" ".join(lines).split()) == " ".join(STORY.split())
    assert "  - indented item" in lines
    assert shown(STORY, 20, pieces) == shown(STORY, 20)


def test_what_fits_is_left_as_it_is():
    for text in (STORY, "a  b\n\n\nc", "  x", "word "):
        assert shown(text, 200).rstrip(" ") == text.rstrip(" ")


def test_code_blocks_are_never_broken():
    text = shown(CODE, 24, 9)
    assert "return a_long_name + another_long_name + yet_another\n" in text
    assert "and that was the whole\nof it." in text


def test_words_longer_than_a_line_and_scripts_without_spaces():
    assert shown(f"a {'x' * 34} b {'y' * 20} c", 10, 5) == f"a\n{'x' * 34} b\n{'y' * 20}\nc"
    lines = shown(CJK, 20).split("\n")
    assert "".join(lines) == CJK
    assert all(len(line) <= 10 for line in lines)


def test_styles_stay_with_their_words():
    wrap = WordWrap(80)
    text = wrap.feed("one ", "green") + wrap.feed("two ", "yellow") + wrap.flush()
    styled = [(text.plain[span.start : span.end], span.style) for span in text.spans]
    assert styled == [("one", "green"), (" ", "green"), ("two", "yellow")]
