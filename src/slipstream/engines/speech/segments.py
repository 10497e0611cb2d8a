"""Segments of a transcript: cut at the timestamps of a window, and written as SubRip or WebVTT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slipstream.models.speech.codec import STEP


@dataclass(frozen=True)
class Segment:
    """A part of a transcript. Times are in seconds from the beginning of the audio."""

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...]
    temperature: float = 0.0


@dataclass(frozen=True)
class Cut:
    """Tokens of one segment with its times in seconds from the beginning of the window."""

    start: float
    end: float
    token_ids: tuple[int, ...]


def cut_window(tokens: Sequence[int], first_time: int, seconds: float) -> tuple[list[Cut], float]:
    """The segments of a window's tokens, and how many seconds of the window they cover.

    `seconds`: the length of the window. A pair of timestamps ends one segment and begins the next. If the last segment
    is not finished, the next window begins where it does, as in OpenAI's decoder."""
    is_time = [token >= first_time for token in tokens]
    cuts = [i + 1 for i, (here, after) in enumerate(pairwise(is_time)) if here and after]
    ends_with_one = is_time[-2:] == [False, True]
    if not cuts:
        times = [token for token in tokens if token >= first_time]
        end = (times[-1] - first_time) * STEP if times and times[-1] > first_time else seconds
        return ([Cut(0.0, min(end, seconds), tuple(tokens))] if tokens else []), seconds
    bounds = [0, *cuts, *([len(tokens)] if ends_with_one else [])]
    parts = [tuple(tokens[a:b]) for a, b in pairwise(bounds)]
    segments = [Cut((part[0] - first_time) * STEP, (part[-1] - first_time) * STEP, part) for part in parts]
    covered = seconds if ends_with_one else (tokens[cuts[-1] - 1] - first_time) * STEP
    return segments, covered


def to_srt(segments: Sequence[Segment]) -> str:
    """The segments as SubRip."""
    blocks = (f"{n}\n{_line(segment, ',')}" for n, segment in enumerate(segments, 1))
    return "\n".join(blocks)


def to_vtt(segments: Sequence[Segment]) -> str:
    """The segments as WebVTT."""
    return "\n".join(["WEBVTT\n", *(_line(segment, ".") for segment in segments)])


FORMATS: dict[str, Callable[[Sequence[Segment]], str]] = {"srt": to_srt, "vtt": to_vtt}


def _line(segment: Segment, mark: str) -> str:
    text = segment.text.strip().replace("-->", "->")
    return f"{clock(segment.start, mark)} --> {clock(segment.end, mark)}\n{text}\n"


def clock(seconds: float, mark: str = ".") -> str:
    """A time as hours, minutes, seconds and milliseconds."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{mark}{rest % 1000:03}"
