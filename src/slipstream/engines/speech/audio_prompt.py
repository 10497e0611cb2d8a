"""Audio as the prompt of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from slipstream.core.sampling import Sampling
from slipstream.engines.base import Engine
from slipstream.engines.completion import Logprob
from slipstream.engines.options import GenerationOptions, Speculation
from slipstream.engines.prompt import ConditionedPrompt
from slipstream.models.run.encoder_decoder.condition import Condition
from slipstream.models.speech.audio import Audio
from slipstream.models.speech.codec import SpeechCodec

TOP = 100  # most probable tokens among which silence is looked for
PLAIN = Speculation(off=True)


@dataclass(frozen=True)
class DetectedLanguage:
    """The language of some audio, and the probability that it holds no speech."""

    code: str
    no_speech: float


def audio_prompt(engine: Engine, codec: SpeechCodec | None, audio: Audio) -> ConditionedPrompt:
    """The prompt of at most 30 seconds of audio. Its language is detected where it is not given."""
    checked = speech_codec(engine, codec)
    checked.check(audio.language, audio.task)
    condition = checked.condition(audio.samples())
    language = audio.language
    if language is None and checked.languages:
        language = detect_language(engine, checked, condition).code
    tokens = checked.prompt(language, audio.task, audio.timestamps, previous_tokens(checked, audio.prompt))
    return ConditionedPrompt(tokens, condition, checked.rules(tokens, audio.timestamps))


def speech_codec(engine: Engine, codec: SpeechCodec | None) -> SpeechCodec:
    if codec is None:
        raise ValueError(f"{engine.model_info.name} is a text model; audio needs a speech model, such as Whisper")
    return codec


def previous_tokens(codec: SpeechCodec, text: str | None) -> list[int]:
    """The tokens of a text before the audio."""
    return codec.text.encode(f" {text.strip()}", raw=True) if text and text.strip() else []


def detect_language(engine: Engine, codec: SpeechCodec, condition: Condition) -> DetectedLanguage:
    """The language of the audio: the likeliest of the language tokens after the start token."""
    sampling = Sampling(temperature=0, allowed_token_ids=frozenset(codec.languages.values()))
    options = GenerationOptions(max_tokens=1, logprobs=TOP, ignore_eos=True, speculation=PLAIN)
    (handle,) = engine.submit(ConditionedPrompt([codec.start], condition), sampling, options)
    completion = handle.result()
    if completion.error:
        raise ValueError(completion.error)
    (token,) = completion.token_ids
    code = next(code for code, i in codec.languages.items() if i == token)
    return DetectedLanguage(code, probability(completion.logprobs, codec.no_speech))


def probability(logprobs: Sequence[Logprob | None], token: int) -> float:
    """The probability of a token at the first position that has log-probabilities; 0 if it is not among the likely."""
    first = next((entry for entry in logprobs if entry is not None), None)
    return 0.0 if first is None else next((exp(value) for i, value in first.top_logprobs if i == token), 0.0)
