"""Decodes one window of audio, at rising temperatures until the transcript is plausible.

As in OpenAI's decoder, a transcript that repeats itself (its text compresses too well) or that the model finds unlikely
is decoded again at the next temperature. Every attempt is a request with a seed of its own, so no draw of one attempt
is used in another.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.core.sampling import Sampling
from slipstream.engines.base import Engine
from slipstream.engines.completion import Completion, SpeculationStats
from slipstream.engines.options import GenerationOptions, Speculation
from slipstream.engines.prompt import ConditionedPrompt
from slipstream.engines.speech.audio_prompt import PLAIN, TOP, probability
from slipstream.models.speech.codec import SpeechCodec

LADDER = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # temperatures that are tried
COMPRESSION = 2.4  # a text that zlib shrinks by more than this repeats itself
LOGPROB = -1.0  # mean log-probability of a token below which a transcript is doubtful
NO_SPEECH = 0.6  # probability of silence above which a doubtful transcript is dropped
LONGEST = 224  # tokens of a window's transcript


@dataclass(frozen=True)
class WindowResult:
    """The accepted attempt at a window, and the counts of all attempts."""

    token_ids: list[int]  # without the end token
    temperature: float
    mean_logprob: float
    no_speech: float  # 0 where the transcript is likely, and nobody asked
    stats: SpeculationStats
    attempts: int
    last: Completion

    @property
    def silent(self) -> bool:
        return self.no_speech > NO_SPEECH and self.mean_logprob < LOGPROB


def decode_window(
    engine: Engine,
    codec: SpeechCodec,
    prompt: ConditionedPrompt,
    temperatures: Sequence[float],
    seed: int | None,
    window: int,
    speculation: Speculation,
) -> WindowResult:
    """Decode a window at the first temperature that gives a plausible transcript, or at the last one."""
    stats = SpeculationStats()
    room = engine.model_info.context_length - len(prompt.token_ids)
    no_speech = 0.0
    for attempt, temperature in enumerate(temperatures):
        own = None if seed is None or temperature == 0 else attempt_seed(seed, window, attempt)
        options = GenerationOptions(min(LONGEST, room), logprobs=0, speculation=speculation)
        (handle,) = engine.submit(prompt, Sampling(temperature=temperature, seed=own), options)
        completion = handle.result()
        if completion.error:
            raise ValueError(completion.error)
        stats.merge(completion.stats)
        tokens = [token for token in completion.token_ids if token != codec.end]
        mean = sum(entry.logprob for entry in completion.logprobs) / max(1, len(completion.logprobs))
        if mean < LOGPROB and not no_speech:
            no_speech = _silence(engine, codec, prompt)
        result = WindowResult(tokens, temperature, mean, no_speech, stats, attempt + 1, completion)
        if result.silent or not _doubtful(completion.text, mean):
            break
    return result


def _silence(engine: Engine, codec: SpeechCodec, prompt: ConditionedPrompt) -> float:
    """The probability of silence: that of its token after the start token."""
    start = prompt.token_ids[: prompt.token_ids.index(codec.start) + 1]
    options = GenerationOptions(1, logprobs=TOP, ignore_eos=True, speculation=PLAIN)
    (handle,) = engine.submit(replace(prompt, token_ids=start, processor=None), Sampling(temperature=0), options)
    completion = handle.result()
    if completion.error:
        raise ValueError(completion.error)
    return probability(completion.logprobs, codec.no_speech)


def _doubtful(text: str, mean_logprob: float) -> bool:
    data = text.strip().encode()
    repeats = bool(data) and len(data) / len(zlib.compress(data)) > COMPRESSION
    return repeats or mean_logprob < LOGPROB


def attempt_seed(seed: int, window: int, attempt: int) -> int:
    """A seed for each attempt at each window, so that no two share their noise."""
    digest = hashlib.blake2b(f"{seed} {window} {attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
