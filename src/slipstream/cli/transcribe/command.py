"""`slipstream transcribe`: writes the transcript of audio files to stdout, and statistics to stderr."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli import options as flags
from slipstream.cli.flag_groups import LoadingFlags, with_groups
from slipstream.cli.output.show import Json
from slipstream.cli.preload import importing

FORMATS = ("text", "srt", "vtt")


@with_groups
def transcribe(
    *,
    files: Annotated[list[Path], typer.Argument(help="Audio files: wav, flac, mp3 and others, of any length.")],
    model: Annotated[str, typer.Option("-m", "--model", help="Whisper: a Hugging Face id, or a folder.")],
    drafter: flags.DrafterName = "ngram",
    verify: flags.AnyRule = None,
    depth: flags.Depth = None,
    option: flags.Settings = None,
    language: Annotated[
        str | None, typer.Option(help="The language's code, such as en. Default: detected in the first window.")
    ] = None,
    task: Annotated[str, typer.Option(help="transcribe, or translate into English.")] = "transcribe",
    temperature: Annotated[
        float | None, typer.Option(help="Default: 0, and up to 1 where a transcript is not plausible.")
    ] = None,
    seed: flags.Seed = None,
    prompt: Annotated[str | None, typer.Option(help="The text before the audio, for style and spelling.")] = None,
    previous_text: Annotated[
        bool, typer.Option("--previous-text", help="Each window reads the text of the one before.")
    ] = False,
    timestamps: Annotated[
        bool, typer.Option("--timestamps/--no-timestamps", help="Whether segments have times.")
    ] = True,
    output: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "text",
    loading: LoadingFlags,
    compare: Annotated[bool, typer.Option("--compare", help="Decode plainly as well, and compare.")] = False,
    as_json: Json = False,
) -> None:
    """Transcribe audio files with Whisper. All files are decoded in one batch."""
    if output not in FORMATS:
        raise ValueError(f"format is {output!r}; it must be {', '.join(FORMATS)}")
    with importing():
        from slipstream.cli.transcribe.session import TranscribeTask, run_transcribe
        from slipstream.engines import open_engine
        from slipstream.engines.native.scheduler import Limits
        from slipstream.engines.speech.transcribe import TranscribeOptions
        from slipstream.models.speech.audio import Audio

    options = TranscribeOptions(temperature, seed, previous_text)
    audios = [Audio(file, language, task, timestamps, prompt) for file in files]
    loaded = [audio.loaded() for audio in audios]  # before the model, which takes longer
    settings, limits = flags.settings(option), Limits(retained=0)
    with open_engine("native", model, drafter, verify, depth, settings, limits=limits, **vars(loading)) as engine:
        job = TranscribeTask([str(file) for file in files], loaded, options, drafter)
        differs = run_transcribe(engine, job, compare, output, as_json)
    if differs:
        raise typer.Exit(1)
