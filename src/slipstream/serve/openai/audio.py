"""`/v1/audio/transcriptions` and `/v1/audio/translations`: a form with an audio file, answered with its transcript."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from io import BytesIO
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from slipstream.engines.speech.segments import FORMATS
from slipstream.engines.speech.transcribe import TranscribeOptions, Transcript, transcribe
from slipstream.models.speech.audio import Audio, decode_audio
from slipstream.serve.errors import ApiError
from slipstream.serve.models import ServedModel
from slipstream.serve.openai.form import Form, read_form
from slipstream.serve.state import ServerState

RESPONSES = ("json", "text", "srt", "verbose_json", "vtt")
FIELDS = {"model", "language", "prompt", "temperature", "response_format", "timestamp_granularities[]"}


async def respond_transcription(state: ServerState, http: Request, task: str) -> Response:
    """Admit a request, transcribe its audio, and answer in the format that was asked for."""
    async with AsyncExitStack() as stack:
        await state.enter(stack, http)
        form = read_form(http.headers.get("content-type", ""), await http.body())
        _check(form)
        served = await stack.enter_async_context(state.use(form.fields.get("model")))
        try:
            async with asyncio.timeout(state.limits.max_seconds):
                transcript = await asyncio.to_thread(_transcribe, served, form, task)
        except TimeoutError as error:
            raise ApiError(408, f"the request took more than {state.limits.max_seconds:g} seconds") from error
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        return _answer(transcript, form.fields.get("response_format", RESPONSES[0]), task)


def _check(form: Form) -> None:
    if "file" not in form.files:
        raise ApiError(400, "the form has no file; send the audio in the field file", "file")
    if unknown := sorted(form.fields.keys() - FIELDS):
        raise ApiError(
            400, f"there is no field {unknown[0]!r}; a form has file, {', '.join(sorted(FIELDS))}", unknown[0]
        )
    kind = form.fields.get("response_format", RESPONSES[0])
    if kind not in RESPONSES:
        raise ApiError(400, f"response_format is {kind!r}; it must be {', '.join(RESPONSES)}", "response_format")


def _transcribe(served: ServedModel, form: Form, task: str) -> Transcript:
    name, content = form.files["file"]
    if not content:
        raise ValueError(f"{name} is empty")
    given = form.fields.get("temperature")
    try:
        temperature = float(given) if given else None
    except ValueError as error:
        raise ValueError(f"temperature is {given!r}; it must be a number") from error
    samples = decode_audio(BytesIO(content), name)
    audio = Audio(samples, form.fields.get("language") or None, task, prompt=form.fields.get("prompt") or None)
    options = TranscribeOptions(temperature or None)  # OpenAI's 0 raises it as needed
    transcript: Transcript = served.engine.call(transcribe, audio, options)
    return transcript


def _answer(transcript: Transcript, kind: str, task: str) -> Response:
    if kind in FORMATS:
        return PlainTextResponse(FORMATS[kind](transcript.segments))
    if kind == "text":
        return PlainTextResponse(f"{transcript.text}\n")
    answer: dict[str, Any] = {"text": transcript.text}
    if kind == "verbose_json":
        answer |= {"task": task, "language": transcript.language, "duration": transcript.duration}
        answer["segments"] = [
            {
                "id": i,
                "start": segment.start,
                "end": segment.end,
                "text": segment.text,
                "tokens": list(segment.token_ids),
                "temperature": segment.temperature,
            }
            for i, segment in enumerate(transcript.segments)
        ]
        answer["tau"] = round(transcript.tau, 3)
    return JSONResponse(answer)
