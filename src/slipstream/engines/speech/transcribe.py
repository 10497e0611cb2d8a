"""Transcribes audio of any length: windows of 30 seconds, each beginning where the last finished segment ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.core.checks import number
from slipstream.engines.base import Engine
from slipstream.engines.completion import Guarantee, SpeculationStats
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.options import Speculation
from slipstream.engines.prompt import ConditionedPrompt
from slipstream.engines.speech.audio_prompt import detect_language, previous_tokens, speech_codec
from slipstream.engines.speech.segments import Segment, cut_window
from slipstream.engines.speech.window import LADDER, WindowResult, decode_window
from slipstream.models.speech.audio import RATE, Audio, Samples
from slipstream.models.speech.codec import STEP, WINDOW, SpeechCodec

OnProgress = Callable[[float, float], None]
"""Called with the seconds of audio that are transcribed and their total."""


@dataclass(frozen=True)
class TranscribeOptions:
    """How audio is transcribed. `temperature` None: 0, and higher ones where a transcript is not plausible."""

    temperature: float | None = None
    seed: int | None = None
    previous_text: bool = False  # each window reads the text of the one before as its prompt
    speculation: Speculation = field(default_factory=Speculation)

    def __post_init__(self) -> None:
        if self.temperature is not None and number("temperature", self.temperature) < 0:
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy) or a positive number")

    @property
    def temperatures(self) -> Sequence[float]:
        return LADDER if self.temperature is None else (self.temperature,)


@dataclass
class Transcript:
    """The text of some audio with its segments, and what decoding it took."""

    language: str | None = None
    duration: float = 0.0  # seconds of audio
    segments: list[Segment] = field(default_factory=list)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    attempts: list[int] = field(default_factory=list)  # of each window
    token_ids: list[list[int]] = field(default_factory=list)  # of each window, timestamps included
    seconds: float = 0.0
    encoder_seconds: float = 0.0
    guarantee: Guarantee | None = None

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def tau(self) -> float:
        return self.stats.tau

    @property
    def real_time_factor(self) -> float:
        """Seconds that a second of audio takes."""
        return self.seconds / self.duration if self.duration else 0.0


def transcribe(
    engine: Engine, audio: Audio, options: TranscribeOptions | None = None, on_progress: OnProgress | None = None
) -> Transcript:
    """Transcribe audio with an engine whose model is a speech model."""
    codec = speech_codec(engine, engine.target.speech if isinstance(engine, NativeEngine) else None)
    codec.check(audio.language, audio.task)
    samples = audio.samples()
    transcription = _Transcription(engine, codec, audio, options or TranscribeOptions())
    transcript = transcription.transcript
    transcript.duration = len(samples) / RATE
    started, seek = time.perf_counter(), 0
    while seek < len(samples):
        piece = samples[seek : seek + WINDOW * RATE]
        covered = transcription.window(piece, seek / RATE)
        seek += max(int(STEP * RATE), round(covered * RATE))
        if on_progress is not None:
            on_progress(min(seek, len(samples)) / RATE, transcript.duration)
    transcript.seconds = time.perf_counter() - started
    return transcript


class _Transcription:
    """The state of one transcription from window to window."""

    def __init__(self, engine: Engine, codec: SpeechCodec, audio: Audio, options: TranscribeOptions) -> None:
        self._engine, self._codec, self._audio, self._options = engine, codec, audio, options
        self.transcript = Transcript(audio.language)
        self._previous = previous_tokens(codec, audio.prompt)

    def window(self, samples: Samples, offset: float) -> float:
        """Transcribe a window that begins `offset` seconds into the audio. Returns the seconds that are done."""
        codec, transcript = self._codec, self.transcript
        condition = codec.condition(samples)
        if transcript.language is None:
            transcript.language = detect_language(self._engine, codec, condition).code if codec.languages else "en"
        tokens = codec.prompt(transcript.language, self._audio.task, self._audio.timestamps, self._tail())
        prompt = ConditionedPrompt(tokens, condition, codec.rules(tokens, self._audio.timestamps))
        chosen = self._options
        result = decode_window(
            self._engine, codec, prompt, chosen.temperatures, chosen.seed, len(transcript.attempts), chosen.speculation
        )
        transcript.encoder_seconds += condition.seconds
        transcript.guarantee = result.last.guarantee
        transcript.stats.merge(result.stats)
        transcript.attempts.append(result.attempts)
        transcript.token_ids.append(result.token_ids)
        seconds = len(samples) / RATE
        return seconds if result.silent else self._keep(result, offset, seconds)

    def _tail(self) -> list[int]:
        """The tokens before a window: at most what the model's context leaves beside a transcript."""
        return self._previous[-(self._engine.model_info.context_length // 2 - 1) :]

    def _keep(self, result: WindowResult, offset: float, seconds: float) -> float:
        cuts, covered = cut_window(result.token_ids, self._codec.first_time, seconds)
        for cut in cuts:
            text = self._codec.text.decode(cut.token_ids)
            if text.strip() and cut.end > cut.start:
                self.transcript.segments.append(
                    Segment(offset + cut.start, offset + cut.end, text, cut.token_ids, result.temperature)
                )
        if self._options.previous_text:
            text_tokens = [token for cut in cuts for token in cut.token_ids if token < self._codec.end]
            self._previous = [*self._previous, *text_tokens] if result.temperature <= 0.5 else []
        return covered
