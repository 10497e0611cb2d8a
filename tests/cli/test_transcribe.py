"""`slipstream transcribe` on a tiny random Whisper: transcripts, comparison, formats, and what is refused."""

from __future__ import annotations

import re
import wave
from pathlib import Path

import numpy as np
import pytest

import letters_folder
import whispers

pytest.importorskip("av", reason="reading audio files needs PyAV, of the extra audio")
KEYS = ["model", "drafter", "rule", "lossless", "repeatable", "file", "text", "language", "duration", "segments"]
KEYS += ["attempts", "tau", "acceptance", "drafted", "seconds", "real_time_factor", "encoder_seconds", "encoder_share"]
COMPARED = ["identical", "plain_seconds", "plain_real_time_factor", "speedup", "decoding_speedup"]


def write_wav(path: Path, samples: np.ndarray, rate: int = 16_000, channels: int = 1) -> str:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes((np.repeat(samples[:, None], channels, 1) * 32767).astype("<i2").tobytes())
    return str(path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("whisper")
    return str(whispers.write(root / "target")), str(whispers.write(root / "draft", noise=0.02))


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> str:
    return write_wav(tmp_path_factory.mktemp("audio") / "clip.wav", whispers.tone(2.0))


def test_a_clip_is_transcribed_as_by_plain_decoding(slipstream, folders, clip):
    words = "transcribe", clip, "-m", folders[0], "-d", folders[1], "--depth", "3", "--temperature", "0"
    report = slipstream(*words, "--compare", "--json").report
    assert list(report) == [*KEYS, *COMPARED]
    assert report["identical"] is True
    assert report["tau"] > 1
    assert report["duration"] == 2.0
    assert report["language"] in whispers.LANGUAGES
    assert report["lossless"] is True
    assert report["segments"][0]["start"] < report["segments"][-1]["end"]


def test_several_files_in_one_batch_and_subtitles(slipstream, folders, clip, tmp_path):
    other = write_wav(tmp_path / "other.wav", whispers.tone(1.0, 220.0), rate=16_000, channels=2)
    words = "transcribe", clip, other, "-m", folders[0], "--language", "de", "--temperature", "0"
    report = slipstream(*words, "--json").report
    assert [file["file"] for file in report["files"]] == [clip, other]
    assert report["files"][1]["duration"] == 1.0
    assert report["text"] == "\n".join(file["text"] for file in report["files"])
    assert "00:00:0" in slipstream(*words, "--format", "srt").stdout
    assert slipstream(*words, "--format", "vtt").stdout.startswith("WEBVTT\n\n00:00:0")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["no.wav"], r"there is no file .*no\.wav"),
        (["empty.wav"], r"empty\.wav is empty"),
        (["text.txt"], r"text\.txt cannot be read as audio|text\.txt has no audio stream"),
        (["none.wav"], r"none\.wav holds no audio"),
        (["clip.wav", "--language", "xx"], r"language is 'xx'; this model knows de, en, fr"),
        (["clip.wav", "--task", "sing"], "task is 'sing'; it must be transcribe or translate"),
        (["clip.wav", "--format", "pdf"], "format is 'pdf'; it must be text, srt, vtt"),
        (["clip.wav", "--temperature", "-1"], "temperature is -1.0; it must be 0"),
        (["clip.wav", "-m", "letters"], "letters is a text model; audio needs a speech model"),
        (
            ["clip.wav", "-d", "letters"],
            "letters cannot draft for .*target: it reads text only, and its target reads audio",
        ),
        (["clip.wav", "-d", "other"], "other cannot draft for .*target: its vocabulary is another one"),
        (["clip.wav", "-d", "wide"], "wide cannot draft for .*target: it reads audio of 8 mel bins"),
    ],
)
def test_bad_input_gives_one_sentence(slipstream, folders, clip, tmp_path, monkeypatch, words, sentence):
    Path(tmp_path / "empty.wav").touch()
    Path(tmp_path / "text.txt").write_text("no audio at all")
    write_wav(tmp_path / "none.wav", np.zeros(0))
    write_wav(tmp_path / "clip.wav", whispers.tone(1.0))
    if "letters" in words:
        letters_folder.write(tmp_path / "letters")
    if "other" in words:
        whispers.write(tmp_path / "other", languages=("en", "de"))
    if "wide" in words:
        whispers.write(tmp_path / "wide", num_mel_bins=8)
    monkeypatch.chdir(tmp_path)
    given = [f"./{word}" if word in ("letters", "other", "wide") else word for word in words]
    done = slipstream("transcribe", *(["-m", folders[0]] if "-m" not in words else []), *given)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line]
    assert lines[-1].startswith("error: ")
    assert re.search(sentence, lines[-1]), done.stderr
