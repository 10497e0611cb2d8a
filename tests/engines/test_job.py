"""Chunks of a request: none are made while nobody reads them, and a reader who comes late misses nothing."""

from __future__ import annotations

import random
import threading

import pytest

from slipstream.core.types import Origin, Request
from slipstream.engines.job import DecodingPlan, Job
from slipstream.models.text.detokenizer import ByteDetokenizer

TOKENS = 40


class Speaker:
    """A request whose cycles emit one to three tokens. A token is the code of a letter."""

    def __init__(self, tokens: int = TOKENS) -> None:
        decoder = ByteDetokenizer(lambda i: bytes([i]))
        self.job = Job(Request([1, 2], max_tokens=tokens), DecodingPlan("eagle", "greedy", 2), decoder)
        self.tokens = [97 + n % 26 for n in range(tokens)]
        self.said, self.cycles = 0, 0

    def cycle(self) -> None:
        new = self.tokens[self.said :][: 1 + self.cycles % 3]
        origins = [Origin.ACCEPTED] * (len(new) - 1) + [Origin.BONUS]
        kept = self.job.row.extend(new, origins, context=10_000)
        self.job.emit(new[:kept], origins[:kept], counts=[(2, kept - 1, kept)])
        self.said, self.cycles = self.said + kept, self.cycles + 1

    def finish(self) -> None:
        while self.job.row.finish_reason is None:
            self.cycle()

    @property
    def text(self) -> str:
        return bytes(self.tokens).decode()


def test_a_result_needs_no_chunks():
    speaker = Speaker()
    speaker.finish()
    answer = speaker.job.result()
    assert (answer.text, answer.token_ids, answer.finish_reason) == (speaker.text, speaker.tokens, "length")
    assert (answer.stats.cycles, answer.stats.emitted, len(answer.origins)) == (speaker.cycles, TOKENS, TOKENS)
    assert speaker.job.undecoded() == [], "nothing is told twice"


@pytest.mark.parametrize("early", [0, 1, 5, 100])
def test_the_first_chunk_of_a_late_reader_has_all_tokens_so_far(early):
    speaker = Speaker()
    for _ in range(early):
        if speaker.job.row.finish_reason is None:
            speaker.cycle()
    before, chunks = speaker.said, iter(speaker.job)
    if before < TOKENS:
        speaker.cycle()
        assert list(next(chunks).token_ids) == speaker.tokens[: speaker.said]
        speaker.cycle()
        second = next(chunks)
        assert len(second.token_ids) == len(second.pieces) == len(second.origins) <= 3
    speaker.finish()
    rest = list(chunks)
    assert rest[-1].finish_reason == "length"
    seen = speaker.job._seen
    assert [token for chunk in seen for token in chunk.token_ids] == speaker.tokens
    assert [piece for chunk in seen for piece in chunk.pieces] == list(speaker.text)
    assert speaker.job.result().text == speaker.text


def test_chunks_whose_text_is_decoded_are_the_result():
    """As peers make them."""
    speaker, word = Speaker(4), "né".encode()
    for part in (list(word[:2]), list(word[2:]), [33]):
        kept = speaker.job.row.extend(part, [Origin.PLAIN] * len(part), 1000)
        speaker.job.put(speaker.job.take(part[:kept], [Origin.PLAIN] * kept, ()))
    answer = speaker.job.result()
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("né!", [*word, 33], "length")


def test_a_request_that_is_ended_hands_out_what_it_emitted():
    speaker = Speaker()
    speaker.cycle()
    speaker.cycle()
    speaker.job.end("error", "the model failed")
    (chunk,) = speaker.job
    assert (list(chunk.token_ids), chunk.finish_reason, chunk.error) == (
        speaker.tokens[:3],
        "error",
        "the model failed",
    )


def test_a_reader_may_come_at_any_time():
    for seed in range(200):
        speaker, chance = Speaker(2000), random.Random(seed)
        engine = threading.Thread(target=speaker.finish)
        engine.start()
        for _ in range(chance.randrange(300)):
            pass
        tokens = [token for chunk in speaker.job for token in chunk.token_ids]
        engine.join()
        assert tokens == speaker.tokens
