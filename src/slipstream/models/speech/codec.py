"""From audio to a prompt of Whisper: features, the tokens that say language and task, and the rules of the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.models.run.encoder_decoder.condition import Condition
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.progress import quiet
from slipstream.models.speech.audio import RATE, TASKS, Samples
from slipstream.models.speech.features import LogMel
from slipstream.models.speech.timestamp_rules import TranscriptRules
from slipstream.models.text.codec import TextCodec

if TYPE_CHECKING:
    from transformers import WhisperFeatureExtractor

WINDOW = 30  # seconds that the encoder reads at a time
STEP = 0.02  # seconds between timestamps
ENGLISH_ONLY = 51864  # tokens of OpenAI's English-only models


@dataclass(frozen=True)
class SpeechCodec:
    """The tokens and features of a Whisper model in `folder`. `text` is its tokenizer. `device` computes features."""

    folder: Path
    text: TextCodec
    device: str = "cpu"

    @cached_property
    def _config(self) -> dict[str, Any]:
        generation = self.folder / "generation_config.json"
        return read_json(self.folder / "config.json") | (read_json(generation) if generation.is_file() else {})

    @cached_property
    def _ids(self) -> dict[str, int]:
        return dict(self.text.tokenizer.get_vocab())

    @property
    def start(self) -> int:
        return self._ids["<|startoftranscript|>"]

    @property
    def end(self) -> int:
        return self._ids["<|endoftext|>"]

    @property
    def first_time(self) -> int:
        """The token of the time 0.00. Later times follow it in steps of 0.02 s."""
        return self._ids["<|notimestamps|>"] + 1

    @property
    def no_speech(self) -> int:
        """The token whose probability after the start token is that of silence."""
        return self._ids["<|notimestamps|>"] - 1

    @cached_property
    def languages(self) -> dict[str, int]:
        """The token of each language by its code; empty for English-only models."""
        if not self._config.get("is_multilingual", self._config["vocab_size"] != ENGLISH_ONLY):
            return {}  # its vocabulary has languages, and it was trained without
        if self._ids["<|startoftranscript|>"] + 1 >= self._ids.get("<|translate|>", 0) - 1:
            return {}
        between = range(self.start + 1, self._ids["<|translate|>"])
        return {token[2:-2]: i for token, i in self._ids.items() if i in between}

    @cached_property
    def _extractor(self) -> WhisperFeatureExtractor:
        from transformers import WhisperFeatureExtractor

        with quiet():
            if (self.folder / "preprocessor_config.json").is_file():
                return WhisperFeatureExtractor.from_pretrained(self.folder, local_files_only=True)
            return WhisperFeatureExtractor(feature_size=self._config["num_mel_bins"])

    @cached_property
    def _features(self) -> LogMel:
        return LogMel(self._extractor, WINDOW * RATE, self.device)

    def condition(self, samples: Samples) -> Condition:
        """The features of at most 30 seconds, padded with silence."""
        if len(samples) > WINDOW * RATE:
            seconds = len(samples) / RATE
            raise ValueError(
                f"the audio has {seconds:.1f} seconds, and a request reads at most {WINDOW}; ss.transcribe reads it all"
            )
        return Condition(self._features(samples))

    def prompt(self, language: str | None, task: str, timestamps: bool, previous: Sequence[int] = ()) -> list[int]:
        """The tokens before a transcript. `previous`: tokens of the text before the audio."""
        before = [self._ids["<|startofprev|>"], *previous] if previous else []
        chosen = [self.start]
        if self.languages:
            chosen += [self.languages[language or "en"], self._ids[f"<|{task}|>"]]
        return [*before, *chosen, *([] if timestamps else [self._ids["<|notimestamps|>"]])]

    def check(self, language: str | None, task: str) -> None:
        """Raise ValueError for a language or a task that the model does not have."""
        if self.languages:
            if language is not None and language not in self.languages:
                legal = ", ".join(sorted(self.languages))
                raise ValueError(f"language is {language!r}; this model knows {legal}")
        elif language not in (None, "en") or task != TASKS[0]:
            raise ValueError("this model transcribes English only; leave out language and task")

    def rules(self, prompt: Sequence[int], timestamps: bool) -> TranscriptRules:
        """The rules of the transcript after a prompt."""
        other = {self._ids[name] for name in ("<|startofprev|>", "<|startoflm|>", "<|notimestamps|>")}
        suppressed = {*(self._config.get("suppress_tokens") or ()), *other, self.start, self.no_speech}
        suppressed |= {*self.languages.values(), *(self._ids[f"<|{task}|>"] for task in TASKS)}
        times = () if timestamps else range(self.first_time, self._config["vocab_size"])
        first = self._config.get("begin_suppress_tokens") or (self.end,)
        return TranscriptRules(
            len(prompt),
            self.end,
            tuple(sorted({*suppressed, *times})),
            tuple(first),
            self.first_time if timestamps else None,
        )
