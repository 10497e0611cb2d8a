"""The log-mel features that Whisper's encoder reads, computed where the model runs.

The sizes and the mel filters are those of the model's own feature extractor in transformers, and so are the numbers.
That extractor takes its samples from the host and returns its features there. On a GPU this costs as much time as some
decoded tokens, and the encoder needs the features on the device. Dither, noise that an extractor can add, is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.models.speech.audio import Samples

if TYPE_CHECKING:
    from transformers import WhisperFeatureExtractor

FLOOR, RANGE = 1e-10, 8.0  # the least power, and how many powers of ten below the largest one are kept


class LogMel:
    """Features of samples, padded with silence to `length`."""

    def __init__(self, extractor: WhisperFeatureExtractor, length: int, device: str) -> None:
        self._points, self._hop, self._length, self._device = extractor.n_fft, extractor.hop_length, length, device
        self._window = torch.hann_window(self._points, device=device)
        self._filters = torch.from_numpy(extractor.mel_filters).to(device, torch.float32).T

    def __call__(self, samples: Samples) -> Float[Tensor, "mels frames"]:
        padded = torch.zeros(self._length, device=self._device)
        padded[: len(samples)] = torch.as_tensor(samples, dtype=torch.float32, device=self._device)
        spectrum = torch.stft(padded, self._points, self._hop, window=self._window, return_complex=True)
        power = (spectrum[..., :-1].abs() ** 2).contiguous()
        logs = (self._filters @ power).clamp(min=FLOOR).log10()
        logs = torch.maximum(logs, logs.max() - RANGE)
        return (logs + 4.0) / 4.0
