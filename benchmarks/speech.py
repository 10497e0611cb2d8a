"""Whisper: plain decoding, speculation, and other implementations (`speech_peers`), in turns.

    python benchmarks/speech.py CLIP... -m openai/whisper-small -d openai/whisper-tiny [--device cuda] [--long 240]

Each clip NAME.flac may have its transcript beside it, NAME.txt, for the word error rate. `--long` adds one recording of
at least so many seconds: the clips in turns, with half a second of silence after each. `--batch` adds all clips as one
batch. A clip may also be NAME.npy, 16 kHz samples, where PyAV is not installed. All decode greedily, English, without
timestamps. Times are medians of `--repeats` rounds in which everybody takes one turn, others than slipstream in at most
`--peer-repeats` (2) of them. They include the encoders; `decoding` is the ratio of plain to speculative without the
encoders. On a GPU the engine is warmed up first. The last line is JSON, and `--out` is a file for it.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speech_peers import peers

from slipstream.core.sampling import Sampling
from slipstream.engines.completion import SpeculationStats
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.options import Speculation
from slipstream.engines.speech.transcribe import TranscribeOptions, Transcript, transcribe
from slipstream.models.sources.catalog import resolve
from slipstream.models.speech.audio import RATE, Audio, read_audio

Samples = Any
OURS = ("plain", "speculative")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="+", type=Path)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-d", "--draft", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--depth", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-repeats", type=int, default=2)
    parser.add_argument("--long", type=float, default=0.0)
    parser.add_argument("--batch", action="store_true")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    audio = {path.stem: samples_of(path) for path in args.clips}
    truth = {
        path.stem: path.with_suffix(".txt").read_text() for path in args.clips if path.with_suffix(".txt").exists()
    }
    if args.long:
        audio["long"], truth["long"] = joined(audio, truth, args.long)
    with NativeEngine(args.model, args.draft, depth=args.depth, device=args.device, warm_up=True) as engine:
        report = measure(engine, audio, truth, args) | {"failures": engine.stats["failures"]}
    line = json.dumps(provenance(args) | report)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(f"{line}\n")
    print(line)


def joined(audio: dict[str, Samples], truth: dict[str, str], seconds: float) -> tuple[Samples, str]:
    """A recording of at least so many seconds made from the clips, and its transcript."""
    silence, parts, texts = np.zeros(RATE // 2, np.float32), list[Samples](), list[str]()
    while sum(map(len, parts)) < seconds * RATE:
        for name, clip in audio.items():
            parts += [clip, silence]
            texts.append(truth.get(name, ""))
    return np.concatenate(parts), " ".join(texts)


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    names = {"model": args.model, "draft": args.draft}
    facts = {name: {"name": Path(value).name, "sha256": resolve(value).sha256} for name, value in names.items()}
    machine = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} threads"
    return facts | {"device": args.device, "machine": machine, "torch": torch.__version__, "depth": args.depth}


def measure(
    engine: NativeEngine, audio: dict[str, Samples], truth: dict[str, str], args: argparse.Namespace
) -> dict[str, Any]:
    def ours(off: bool) -> Callable[[Samples], Transcript]:
        options = TranscribeOptions(temperature=0.0, speculation=Speculation(off=off))
        return lambda samples: transcribe(engine, Audio(samples, "en", timestamps=False), options)

    runs: dict[str, Callable[[Samples], Any]] = {"plain": ours(True), "speculative": ours(False)}
    if not args.no_peer:
        runs |= {name: peer.transcribe for name, peer in peers(args.model, args.draft, args.device)}
    rows = list[dict[str, Any]]()
    print(f"{'clip':12} {'':22} {'seconds':>8} {'RTF':>7} {'encoder':>8} {'tau':>5}  errors")
    for name, samples in audio.items():
        turns = {kind: partial(run, samples) for kind, run in runs.items()}
        times, results = timed(turns, args.repeats, args.peer_repeats)
        same = results["plain"].token_ids == results["speculative"].token_ids
        for kind, result in results.items():
            rows.append(
                row(name, kind, result, times[kind], len(samples) / RATE, truth.get(name)) | {"identical": same}
            )
            show(rows[-1])
    if args.batch:
        rows += batch(engine, audio, args.repeats)
    return {"summary": summary(rows), "rows": rows}


def timed(
    runs: dict[str, Callable[[], Any]], repeats: int, peer_repeats: int = 0
) -> tuple[dict[str, float], dict[str, Any]]:
    """The median seconds and the last result of each run. The first round warms up."""
    times: dict[str, list[float]] = {kind: [] for kind in runs}
    results: dict[str, Any] = {}
    for turn in range(repeats + 1):
        for kind, run in runs.items():
            if turn > peer_repeats and kind not in OURS:
                continue
            started = time.perf_counter()
            results[kind] = run()
            times[kind].append(time.perf_counter() - started)
    return {kind: statistics.median(each[1:]) for kind, each in times.items()}, results


def batch(engine: NativeEngine, audio: dict[str, Samples], repeats: int) -> list[dict[str, Any]]:
    """All clips of at most 30 seconds as one batch."""
    clips = [Audio(samples, "en", timestamps=False) for samples in audio.values() if len(samples) <= 30 * RATE]
    seconds = sum(len(clip.samples()) for clip in clips) / RATE
    plain = Speculation(off=True)
    runs = {
        "plain": lambda: engine.generate(clips, Sampling(temperature=0), speculation=plain),
        "speculative": lambda: engine.generate(clips, Sampling(temperature=0)),
    }
    times, results = timed(runs, repeats)
    same = [c.token_ids for c in results["plain"]] == [c.token_ids for c in results["speculative"]]
    rows = []
    for kind, completions in results.items():
        stats = SpeculationStats()
        for completion in completions:
            stats.merge(completion.stats)
        facts = {"clip": f"batch of {len(clips)}", "kind": kind, "seconds": round(times[kind], 4)}
        rows.append(facts | {"real_time_factor": round(times[kind] / seconds, 5), "tau": round(stats.tau, 3)})
        rows[-1] |= {"encoder_share": None, "word_errors": None, "identical": same}
        show(rows[-1])
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios to plain decoding by clip, and the word error rate of each kind over all clips with a transcript."""
    ratios: dict[str, dict[str, float]] = {}
    for clip in dict.fromkeys(each["clip"] for each in rows):
        mine = {each["kind"]: each for each in rows if each["clip"] == clip}
        plain, fast = mine["plain"], mine["speculative"]
        ratios[clip] = {kind: round(plain["seconds"] / each["seconds"], 3) for kind, each in mine.items()}
        if plain["encoder_share"] is not None:
            decoding = [each["seconds"] * (1 - each["encoder_share"]) for each in (plain, fast)]
            ratios[clip]["decoding"] = round(decoding[0] / decoding[1], 3)
    counts: dict[str, list[int]] = {}
    for each in rows:
        if each["word_errors"] and each["clip"] != "long":
            wrong, total = counts.setdefault(each["kind"], [0, 0])
            said, of = map(int, each["word_errors"].split("/"))
            counts[each["kind"]] = [wrong + said, total + of]
    rates = {kind: round(wrong / total, 4) for kind, (wrong, total) in counts.items()}
    return {"ratio_to_plain": ratios, "word_error_rate": rates, "identical": all(each["identical"] for each in rows)}


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['clip']:12} {row['kind']:22} {row['seconds']:8.3f} {row['real_time_factor']:7.4f} "
        f"{row['encoder_share'] or 0:8.2f} {row['tau'] or 0:5.2f}  {row['word_errors'] or ''}",
        flush=True,
    )


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
