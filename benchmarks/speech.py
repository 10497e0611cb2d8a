"""Whisper: plain decoding, speculation, and transformers with and without its assisted generation, in turns.

    python benchmarks/speech.py CLIP... -m openai/whisper-small -d openai/whisper-tiny [--device cuda] [--long 300]

Each clip NAME.flac may have its transcript beside it, NAME.txt, for the word error rate. `--long` adds one recording of
so many seconds made from the clips. A clip may also be NAME.npy, 16 kHz samples, where PyAV is not installed. All
decode greedily, English, without timestamps. Times are medians of `--repeats` rounds in which everybody takes one turn;
they include the encoders. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.options import Speculation
from slipstream.engines.speech.transcribe import TranscribeOptions, Transcript, transcribe
from slipstream.models.sources.catalog import load_model, resolve
from slipstream.models.speech.audio import RATE, Audio, read_audio

Samples = Any


def samples_of(path: Path) -> Samples:
    return np.load(path).astype(np.float32) if path.suffix == ".npy" else read_audio(path)


def words(text: str) -> list[str]:
    return re.sub(r"[^\w' ]", " ", text.lower().replace("-", " ")).split()


def errors(said: str, truth: str) -> int:
    """The edit distance of two texts in words."""
    a, b = words(said), words(truth)
    line = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        above, line[0] = line[0], i
        for j, other in enumerate(b, 1):
            above, line[j] = line[j], min(line[j] + 1, line[j - 1] + 1, above + (word != other))
    return line[-1]


class Peer:
    """transformers' own generation, by windows of 30 seconds."""

    def __init__(self, model: str, draft: str, device: str) -> None:
        from transformers import AutoTokenizer, WhisperFeatureExtractor

        files, dtype = resolve(model), torch.bfloat16 if device == "cuda" else torch.float32
        self._model, self._draft = (load_model(resolve(name), dtype, device) for name in (model, draft))
        self._features = WhisperFeatureExtractor.from_pretrained(files.path)
        self._text, self._device = AutoTokenizer.from_pretrained(files.path), device
        for each in (self._model, self._draft):  # old settings that generate refuses beside its arguments
            each.generation_config.forced_decoder_ids = each.config.forced_decoder_ids = None

    @torch.inference_mode()
    def transcribe(self, samples: Samples, assisted: bool) -> str:
        texts = []
        for start in range(0, len(samples), 30 * RATE):
            window = samples[start : start + 30 * RATE]
            given = self._features(window, sampling_rate=RATE, return_tensors="pt")["input_features"]
            given = given.to(self._device, self._model.dtype)
            more = {"assistant_model": self._draft} if assisted else {}
            ids = self._model.generate(given, language="en", task="transcribe", do_sample=False, **more)
            texts.append(self._text.decode(ids[0], skip_special_tokens=True))
        return "".join(texts).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="+", type=Path)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-d", "--draft", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--depth", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--long", type=float, default=0.0)
    parser.add_argument("--no-peer", action="store_true")
    args = parser.parse_args()
    audio = {path.stem: samples_of(path) for path in args.clips}
    truth = {
        path.stem: path.with_suffix(".txt").read_text() for path in args.clips if path.with_suffix(".txt").exists()
    }
    if args.long:
        joined = np.concatenate([part for clip in audio.values() for part in (clip, np.zeros(RATE // 2, np.float32))])
        audio["long"] = np.tile(joined, int(args.long * RATE / len(joined)) + 1)[: int(args.long * RATE)]
    with NativeEngine(args.model, args.draft, depth=args.depth, device=args.device) as engine:
        report = measure(engine, audio, truth, args)
    print(json.dumps({"model": args.model, "draft": args.draft, "device": args.device, "rows": report}))


def measure(
    engine: NativeEngine, audio: dict[str, Samples], truth: dict[str, str], args: argparse.Namespace
) -> list[dict[str, Any]]:
    def ours(off: bool) -> Callable[[Samples], Transcript]:
        options = TranscribeOptions(temperature=0.0, speculation=Speculation(off=off))
        return lambda samples: transcribe(engine, Audio(samples, "en", timestamps=False), options)

    runs: dict[str, Callable[[Samples], Any]] = {"plain": ours(True), "speculative": ours(False)}
    if not args.no_peer:
        peer = Peer(args.model, args.draft, args.device)
        runs |= {"transformers": lambda samples: peer.transcribe(samples, False)}
        runs |= {"transformers assisted": lambda samples: peer.transcribe(samples, True)}
    rows = []
    print(f"{'clip':12} {'':22} {'seconds':>8} {'RTF':>7} {'encoder':>8} {'tau':>5}  errors")
    for name, samples in audio.items():
        times: dict[str, list[float]] = {kind: [] for kind in runs}
        results: dict[str, Any] = {}
        for _ in range(args.repeats + 1):  # the first round warms up
            for kind, run in runs.items():
                started = time.perf_counter()
                results[kind] = run(samples)
                times[kind].append(time.perf_counter() - started)
        same = results["plain"].token_ids == results["speculative"].token_ids
        for kind, result in results.items():
            rows.append(
                row(name, kind, result, statistics.median(times[kind][1:]), len(samples) / RATE, truth.get(name))
            )
            rows[-1]["identical"] = same
            shown = rows[-1]
            print(
                f"{name:12} {kind:22} {shown['seconds']:8.3f} {shown['real_time_factor']:7.4f} "
                f"{shown['encoder_share'] or 0:8.2f} {shown['tau'] or 0:5.2f}  {shown['word_errors']}",
                flush=True,
            )
    return rows


def row(name: str, kind: str, result: Any, seconds: float, duration: float, truth: str | None) -> dict[str, Any]:
    own = result if isinstance(result, Transcript) else None
    text = own.text if own else result
    return {
        "clip": name,
        "kind": kind,
        "seconds": round(seconds, 4),
        "real_time_factor": round(seconds / duration, 5),
        "encoder_share": round(own.encoder_seconds / own.seconds, 3) if own else None,
        "tau": round(own.tau, 3) if own else None,
        "word_errors": None if truth is None else f"{errors(text, truth)}/{len(words(truth))}",
        "text": text,
    }


if __name__ == "__main__":
    main()
