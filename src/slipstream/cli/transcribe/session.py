"""One run of `transcribe` after the engine is open: transcripts, statistics and comparison."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from slipstream.cli.output.show import console, print_json
from slipstream.engines.base import Engine, Speculation, SpeculationStats
from slipstream.engines.speech.segments import FORMATS
from slipstream.engines.speech.transcribe import TranscribeOptions, Transcript, transcribe
from slipstream.models.sources.progress import counting
from slipstream.models.speech.audio import RATE, Audio


@dataclass(frozen=True)
class TranscribeTask:
    """The audio files of a command and how they are transcribed."""

    names: Sequence[str]
    audios: Sequence[Audio]
    options: TranscribeOptions
    drafter: str


def run_transcribe(engine: Engine, task: TranscribeTask, compare: bool, output: str, as_json: bool) -> bool:
    """Transcribe, show and compare. Returns whether the comparison found other tokens where it must not."""
    transcripts, seconds = _transcribe_all(engine, task, "transcribing")
    report = _report(engine, task, transcripts, seconds)
    if compare:
        plain = replace(task, options=replace(task.options, speculation=Speculation(off=True)))
        others, plain_seconds = _transcribe_all(engine, plain, "comparing with plain decoding")
        report |= _comparison(transcripts, seconds, others, plain_seconds)
    if not as_json:
        _show(task, transcripts, output)
        _show_statistics(report)
    else:
        print_json(report)
    return report.get("identical") is False and report["repeatable"] is not None


def _transcribe_all(engine: Engine, task: TranscribeTask, title: str) -> tuple[list[Transcript], float]:
    """Transcribe all files at the same time. Returns the transcripts and the seconds that it took."""
    started, total = time.perf_counter(), sum(len(audio.samples()) for audio in task.audios) / RATE
    with counting(console(stderr=True), transient=True, disable=not console(stderr=True).is_terminal) as bars:
        bar = bars.add_task(f"{title}, seconds of audio", total=round(total))
        done = [0.0] * len(task.audios)

        def work(index: int) -> Transcript:
            def on_progress(seconds: float, total: float) -> None:
                done[index] = seconds
                bars.update(bar, completed=round(sum(done)))

            return transcribe(engine, task.audios[index], task.options, on_progress)

        with ThreadPoolExecutor(len(task.audios)) as pool:
            transcripts = list(pool.map(work, range(len(task.audios))))
    return transcripts, time.perf_counter() - started


def _report(engine: Engine, task: TranscribeTask, transcripts: Sequence[Transcript], seconds: float) -> dict[str, Any]:
    total, duration = SpeculationStats(), sum(transcript.duration for transcript in transcripts)
    for transcript in transcripts:
        total.merge(transcript.stats)
    encoder = sum(transcript.encoder_seconds for transcript in transcripts)
    guarantee = transcripts[0].guarantee
    files = [_file_report(name, transcript) for name, transcript in zip(task.names, transcripts, strict=True)]
    return {
        "model": engine.label,
        "drafter": task.drafter,
        "rule": guarantee.rule if guarantee else None,
        "lossless": guarantee.lossless if guarantee else None,
        "repeatable": guarantee.repeatable if guarantee else None,
        **(files[0] if len(files) == 1 else {"text": "\n".join(file["text"] for file in files), "files": files}),
        "tau": round(total.tau, 3),
        "acceptance": [round(share, 3) for share in total.acceptance],
        "drafted": sum(total.drafted),
        "seconds": round(seconds, 3),
        "real_time_factor": round(seconds / duration, 4),
        "encoder_seconds": round(encoder, 3),
        "encoder_share": round(min(1.0, encoder / seconds), 3),
    }


def _file_report(name: str, transcript: Transcript) -> dict[str, Any]:
    return {
        "file": name,
        "text": transcript.text,
        "language": transcript.language,
        "duration": round(transcript.duration, 3),
        "segments": [
            {
                "start": round(part.start, 2),
                "end": round(part.end, 2),
                "text": part.text.strip(),
                "temperature": part.temperature,
                "token_ids": list(part.token_ids),
            }
            for part in transcript.segments
        ],
        "attempts": transcript.attempts,
    }


def _comparison(
    ours: Sequence[Transcript], seconds: float, plain: Sequence[Transcript], plain_seconds: float
) -> dict[str, Any]:
    """Whether the tokens are the same, and the times of both without those of the encoders."""
    same = [transcript.token_ids for transcript in ours] == [transcript.token_ids for transcript in plain]
    decoding, plain_decoding = (
        max(1e-9, total - sum(transcript.encoder_seconds for transcript in transcripts))
        for total, transcripts in ((seconds, ours), (plain_seconds, plain))
    )
    duration = sum(transcript.duration for transcript in ours)
    return {
        "identical": same,
        "plain_seconds": round(plain_seconds, 3),
        "plain_real_time_factor": round(plain_seconds / duration, 4),
        "speedup": round(plain_seconds / seconds, 3),
        "decoding_speedup": round(plain_decoding / decoding, 3),
    }


def _show(task: TranscribeTask, transcripts: Sequence[Transcript], output: str) -> None:
    for name, transcript in zip(task.names, transcripts, strict=True):
        if len(task.names) > 1:
            console(stderr=True).print(name, style="dim")
        print(FORMATS[output](transcript.segments) if output in FORMATS else transcript.text, flush=True)


def _show_statistics(report: dict[str, Any]) -> None:
    notes = console(stderr=True)
    lossless = {True: ", lossless", False: ", lossy", None: ""}[report["lossless"]]
    notes.print(f"{report['model']}, drafted by {report['drafter']}, rule {report['rule']}{lossless}", style="dim")
    notes.print(
        f"{report['seconds']} s, {report['real_time_factor']} of the audio's length; encoder "
        f"{report['encoder_share']:.0%}; tau {report['tau']}",
        style="dim",
    )
    if "identical" in report:
        same = "the same tokens as" if report["identical"] else "other tokens than"
        notes.print(
            f"{same} plain decoding; {report['speedup']} times as fast, "
            f"{report['decoding_speedup']} times without the encoders"
        )
