"""Other implementations of Whisper for `speech.py`: transformers, openai-whisper, faster-whisper.

All run the weights of one folder. They decode greedily, English, without timestamps, by windows of 30 seconds.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from slipstream.models.sources.catalog import load_model, resolve
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.whisper.openai_convert import SIZES, renamed
from slipstream.models.speech.audio import RATE

Samples = Any


class Peer(ABC):
    """Another implementation with the target's weights."""

    @abstractmethod
    def window(self, samples: Samples) -> str:
        """The text of at most 30 seconds."""

    def transcribe(self, samples: Samples) -> str:
        windows = range(0, len(samples), 30 * RATE)
        return "".join(self.window(samples[start : start + 30 * RATE]) for start in windows).strip()


class Transformers(Peer):
    """transformers' own generation, assisted by a draft model where one is given."""

    def __init__(self, model: str, draft: str | None, device: str) -> None:
        from transformers import AutoTokenizer, WhisperFeatureExtractor

        files, self._dtype = resolve(model), torch.bfloat16 if device == "cuda" else torch.float32
        self._model = load_model(files, self._dtype, device)
        assistant = None if draft is None else load_model(resolve(draft), self._dtype, device)
        self._more = {} if assistant is None else {"assistant_model": assistant}
        self._features = WhisperFeatureExtractor.from_pretrained(files.path)
        self._text, self._device = AutoTokenizer.from_pretrained(files.path), device
        for each in filter(None, (self._model, assistant)):  # old settings that generate refuses beside its arguments
            each.generation_config.forced_decoder_ids = each.config.forced_decoder_ids = None

    @torch.inference_mode()
    def window(self, samples: Samples) -> str:
        extracted = self._features(samples, sampling_rate=RATE, return_tensors="pt", device=self._device)
        given = extracted["input_features"].to(self._device, self._dtype)
        ids = self._model.generate(given, language="en", task="transcribe", do_sample=False, **self._more)
        text: str = self._text.decode(ids[0], skip_special_tokens=True)
        return text


class OpenAI(Peer):
    """openai-whisper."""

    def __init__(self, model: str, draft: None, device: str) -> None:
        import whisper
        from whisper.model import ModelDimensions, Whisper

        folder = resolve(model).path
        config, weights = read_json(folder / "config.json"), load_file(folder / "model.safetensors")
        sizes = {own: config[name] for name, own in SIZES.items()}
        built = Whisper(ModelDimensions(**sizes, n_text_state=config["d_model"]))
        built.load_state_dict({name: weights[renamed(name)] for name in built.state_dict()})
        self._whisper, self._model = whisper, built.to(device)
        self._options = whisper.DecodingOptions(language="en", without_timestamps=True, fp16=device == "cuda")

    def window(self, samples: Samples) -> str:
        padded = self._whisper.pad_or_trim(samples)
        mel = self._whisper.log_mel_spectrogram(padded, self._model.dims.n_mels, device=self._model.device)
        return f" {self._whisper.decode(self._model, mel, self._options).text}"


class Faster(Peer):
    """faster-whisper. The weights are converted to CTranslate2's format first."""

    def __init__(self, model: str, draft: None, device: str) -> None:
        from ctranslate2.converters import TransformersConverter
        from faster_whisper import WhisperModel

        kind = "float16" if device == "cuda" else "float32"
        self._folder = tempfile.TemporaryDirectory()
        copied = ["tokenizer.json", "preprocessor_config.json"]
        converter = TransformersConverter(str(resolve(model).path), copy_files=copied)
        converter.convert(str(Path(self._folder.name) / "model"), quantization=kind)
        threads = torch.get_num_threads()
        self._model = WhisperModel(f"{self._folder.name}/model", device, compute_type=kind, cpu_threads=threads)

    def window(self, samples: Samples) -> str:
        settings = {"beam_size": 1, "temperature": 0.0, "without_timestamps": True}
        segments, _ = self._model.transcribe(samples, "en", condition_on_previous_text=False, **settings)
        return "".join(segment.text for segment in segments)


def peers(model: str, draft: str, device: str) -> Iterator[tuple[str, Peer]]:
    """The peers that are installed. For the others a line says what is missing."""
    kinds = {
        "transformers": (Transformers, None),
        "transformers assisted": (Transformers, draft),
        "openai-whisper": (OpenAI, None),
        "faster-whisper": (Faster, None),
    }
    for name, (kind, assistant) in kinds.items():
        try:
            yield name, kind(model, assistant, device)
        except Exception as error:  # a package is missing, or does not fit the others
            print(f"{name}: skipped ({type(error).__name__}: {str(error).partition(chr(10))[0]})", flush=True)
