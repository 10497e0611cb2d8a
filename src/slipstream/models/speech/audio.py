"""Audio as mono samples at 16 kHz, from a file of any format or from an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.checks import shown

RATE = 16_000  # samples per second that speech models read
TASKS = ("transcribe", "translate")
Samples = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Audio:
    """Audio as a prompt: what it is, and what is asked of it.

    `source`: a file (wav, flac, mp3 and others), or mono samples at 16 kHz as an array or tensor."""

    source: str | PathLike[str] | Sequence[float] | Any
    language: str | None = None  # its code, such as "en"; None: detected
    task: str = "transcribe"  # or "translate", into English
    timestamps: bool = True
    prompt: str | None = None  # the text before the audio, which sets style and spelling

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task is {shown(self.task)}; it must be {' or '.join(TASKS)}")
        for name in ("language", "prompt"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ValueError(f"{name} is {shown(value)}; it must be a string, or None")

    def samples(self) -> Samples:
        """The samples. ValueError where there are none."""
        samples = read_audio(self.source) if isinstance(self.source, str | PathLike) else _array(self.source)
        if not len(samples):
            raise ValueError(f"{self.name} holds no audio; it has no samples")
        return samples

    def loaded(self) -> Audio:
        """The same audio with its samples in memory."""
        return replace(self, source=self.samples())

    @property
    def name(self) -> str:
        return fspath(self.source) if isinstance(self.source, str | PathLike) else "the audio"


def _array(values: Any) -> Samples:
    try:
        samples = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"audio is {shown(values)}; it must be a file, or mono samples at 16 kHz") from error
    if samples.ndim != 1 or not np.isfinite(samples).all():
        raise ValueError(f"audio has the shape {samples.shape}; it must be one row of finite samples at 16 kHz")
    return samples


def read_audio(path: str | PathLike[str]) -> Samples:
    """Mono samples at 16 kHz of a file in any format that PyAV decodes. Channels are averaged."""
    if not Path(path).is_file():
        raise ValueError(f"there is no file {fspath(path)}")
    if not Path(path).stat().st_size:
        raise ValueError(f"{fspath(path)} is empty")
    return decode_audio(fspath(path), fspath(path))


def decode_audio(source: str | BytesIO, name: str) -> Samples:
    """Mono samples at 16 kHz of a path or an open file. `name` is its name in error messages."""
    try:
        import av
    except ImportError as error:
        raise ValueError("reading audio files needs PyAV; `pip install slipstream-lm[audio]` adds it") from error
    try:
        with av.open(source) as container:
            if not container.streams.audio:
                raise ValueError(f"{name} has no audio stream")
            resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
            decoded = (*container.decode(audio=0), None)  # None flushes the resampler
            parts = [part.to_ndarray()[0] for frame in decoded for part in resampler.resample(frame)]
    except av.FFmpegError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(f"{name} cannot be read as audio ({reason})") from error
    return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, np.float32)
