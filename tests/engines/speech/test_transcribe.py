"""Transcription: windows and segments, attempts at rising temperatures, language, and audio as a prompt."""

from __future__ import annotations

import numpy as np
import pytest

import letters
import slipstream as ss
import whispers
from slipstream.engines.speech import window
from slipstream.engines.speech.segments import Segment, cut_window, to_srt, to_vtt
from slipstream.engines.speech.transcribe import TranscribeOptions
from slipstream.engines.speech.window import attempt_seed

T = 100  # the token of 0.00


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = whispers.write(tmp_path_factory.mktemp("whisper"))
    with ss.Engine(str(folder), "ngram") as opened:
        yield opened


@pytest.mark.parametrize(
    ("tokens", "segments", "covered"),
    [
        ([], [], 30.0),
        ([1, 2], [(0.0, 30.0)], 30.0),  # no times
        ([T, 1, T + 100], [(0.0, 2.0)], 30.0),  # one segment that ends the window
        ([T, 1, T + 100, T + 150, 2], [(0.0, 2.0)], 2.0),  # the second is not finished: the next window begins there
        ([T, 1, T + 100, T + 150, 2, T + 200], [(0.0, 2.0), (3.0, 4.0)], 30.0),
        ([T, 1, T + 100, T + 100, 2, T + 200, T + 200], [(0.0, 2.0), (2.0, 4.0)], 4.0),
    ],
)
def test_windows_are_cut_at_pairs_of_timestamps(tokens, segments, covered):
    cuts, done = cut_window(tokens, T, 30.0)
    assert [(cut.start, cut.end) for cut in cuts] == segments
    assert done == covered


def test_subtitles():
    parts = [Segment(0.0, 1.5, " Hello", ()), Segment(3661.25, 3662.0, " a --> b", ())]
    assert to_srt(parts) == "1\n00:00:00,000 --> 00:00:01,500\nHello\n\n2\n01:01:01,250 --> 01:01:02,000\na -> b\n"
    assert to_vtt(parts).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello\n")


def test_a_long_recording_is_read_in_windows(engine):
    progress = []
    options = TranscribeOptions(temperature=0, previous_text=True)
    audio = ss.Audio(whispers.tone(65.0), language="en", timestamps=False, prompt="before")
    transcript = ss.transcribe(engine, audio, options, lambda *done: progress.append(done))
    assert len(transcript.attempts) == 3
    assert progress == [(30.0, 65.0), (60.0, 65.0), (65.0, 65.0)]
    assert [segment.start for segment in transcript.segments] == [0.0, 30.0, 60.0][: len(transcript.segments)]


def test_doubtful_windows_are_tried_at_every_temperature_and_seeds_repeat(engine, monkeypatch):
    monkeypatch.setattr(window, "LOGPROB", 0.0)  # every transcript is doubtful
    monkeypatch.setattr(window, "NO_SPEECH", 2.0)
    monkeypatch.setattr(window, "LONGEST", 12)
    audio = ss.Audio(whispers.tone(1.0), language="de")
    first, again = (ss.transcribe(engine, audio, TranscribeOptions(seed=3)) for _ in range(2))
    assert first.attempts == [6]
    assert first.token_ids == again.token_ids
    assert first.segments[0].temperature == 1.0
    assert first.language == "de"


def test_every_attempt_at_every_window_has_its_own_seed():
    assert len({attempt_seed(7, number, attempt) for number in range(20) for attempt in range(6)}) == 120


def test_audio_is_a_prompt_and_samples_share_its_encoder(engine):
    clip = ss.Audio(whispers.tone(1.0))
    first, second = engine.generate([clip, clip], ss.Sampling(temperature=0), max_tokens=20)
    assert first.token_ids == second.token_ids
    assert "<|" not in first.text
    assert len(engine.generate(clip, ss.Sampling(seed=1), max_tokens=5, n=3)) == 3


@pytest.mark.parametrize(
    ("audio", "sentence"),
    [
        (ss.Audio(whispers.tone(31.0)), "the audio has 31.0 seconds, and a request reads at most 30"),
        (ss.Audio(np.zeros(0)), "holds no audio"),
        (ss.Audio(np.zeros((2, 3))), "must be one row of finite samples"),
        (ss.Audio("no such file.wav"), "there is no file"),
        (ss.Audio(np.full(9, np.nan)), "must be one row of finite samples"),
    ],
)
def test_audio_that_cannot_be_read_is_refused(engine, audio, sentence):
    with pytest.raises(ValueError, match=sentence):
        engine.generate(audio)


def test_text_and_audio_models_refuse_each_others_prompts(engine):
    with pytest.raises(ValueError, match="needs audio to listen to"):
        engine.generate("hello")
    with ss.Engine(letters.target(), "none") as text, pytest.raises(ValueError, match="is a text model"):
        text.generate(ss.Audio(whispers.tone(1.0)))
