"""`/v1/audio/transcriptions` with OpenAI's own client, on a tiny random Whisper."""

from __future__ import annotations

import io
import wave
from functools import partial

import httpx
import numpy as np
import pytest
from live import served

import whispers
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.process.engine import ProcessEngine

pytest.importorskip("av", reason="reading audio files needs PyAV, of the extra audio")


def wav(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16_000, 0, "NONE", ""))
        out.writeframes((samples * 32767).astype("<i2").tobytes())
    return file.getvalue()


CLIP = wav(whispers.tone(1.0))


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    folder = whispers.write(tmp_path_factory.mktemp("whisper"))
    with served(open_model=lambda name: NativeEngine(str(folder), "ngram")) as address:
        yield address


def test_openais_client_gets_a_transcript(speech):
    import openai

    with openai.OpenAI(base_url=f"{speech}/v1", api_key="none", max_retries=0) as client:
        asked = {"model": "letters", "file": ("clip.wav", CLIP), "language": "en", "temperature": 0.5}
        assert isinstance(client.audio.transcriptions.create(**asked).text, str)
        verbose = client.audio.transcriptions.create(**asked, response_format="verbose_json")
        assert verbose.duration == 1.0
        assert verbose.segments[0].start < verbose.segments[-1].end
        assert client.audio.transcriptions.create(**asked, response_format="vtt").startswith("WEBVTT")
    form = {"files": {"file": ("clip.wav", CLIP)}, "data": {"temperature": "0.5"}, "timeout": 60}
    translated = httpx.post(f"{speech}/v1/audio/translations", **form)
    assert list(translated.json()) == ["text"]


@pytest.mark.slow
def test_audio_is_transcribed_in_the_process_of_the_model(speech, tmp_path):
    folder = whispers.write(tmp_path)
    nearly_greedy = {"temperature": "0.0001"}  # two requests without a seed differ at higher ones
    form = {"files": {"file": ("clip.wav", CLIP)}, "data": nearly_greedy, "timeout": 60}
    engine = ProcessEngine(partial(NativeEngine, str(folder), "ngram"))
    with served(open_model=lambda name: engine) as address:
        answer = httpx.post(f"{address}/v1/audio/transcriptions", **form)
        assert answer.status_code == 200, answer.text
        assert answer.json() == httpx.post(f"{speech}/v1/audio/transcriptions", **form).json()
        refused = httpx.post(f"{address}/v1/audio/transcriptions", **form | {"data": {"language": "xx"}})
        assert refused.status_code == 400
        assert "language is 'xx'" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"files": {"other": ("a.wav", CLIP)}}, "the form has no file"),
        ({"json": {"model": "letters"}}, "the request is no form"),
        ({"files": {"file": ("a.wav", b"")}}, "a.wav is empty"),
        ({"files": {"file": ("a.txt", b"no audio at all")}}, "a.txt cannot be read as audio"),
        ({"files": {"file": ("a.wav", CLIP)}, "data": {"language": "xx"}}, "language is 'xx'"),
        ({"files": {"file": ("a.wav", CLIP)}, "data": {"temperature": "hot"}}, "temperature is 'hot'"),
        ({"files": {"file": ("a.wav", CLIP)}, "data": {"response_format": "pdf"}}, "response_format is 'pdf'"),
        ({"files": {"file": ("a.wav", CLIP)}, "data": {"speed": "2"}}, "there is no field 'speed'"),
    ],
)
def test_bad_forms_are_refused_in_a_sentence(speech, form, sentence):
    answer = httpx.post(f"{speech}/v1/audio/transcriptions", **form, timeout=60)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]["message"]


def test_a_text_model_refuses_audio(address):
    answer = httpx.post(f"{address}/v1/audio/transcriptions", files={"file": ("a.wav", CLIP)}, timeout=60)
    assert answer.status_code == 400
    assert "is a text model; audio needs a speech model" in answer.json()["error"]["message"]
