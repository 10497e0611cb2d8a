"""Options several verbs share."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

ModelName = Annotated[str, typer.Option("-m", "--model", help="A catalog name, Hugging Face id, folder or GGUF file.")]
DrafterName = Annotated[
    str, typer.Option("-d", "--drafter", help="ngram, draft_model, none, or a model to draft with.")
]
EngineName = Annotated[
    str, typer.Option("-e", "--engine", help="Who runs the model: native, transformers, llamacpp or vllm.")
]
AnyRule = Annotated[
    str | None,
    typer.Option(
        "--verify",
        help="block, token or coupled; for trees no_replace, replace, spectr, chosen or coupled. "
        "Default: coupled with --seed, else block, for trees no_replace.",
    ),
]
Depth = Annotated[
    int | None, typer.Option(help="Drafted tokens per cycle; chosen by cost and acceptance if not given.")
]
Shape = Annotated[
    str | None,
    typer.Option("--tree", metavar="SHAPE", help="Draft trees: 24 (nodes), 4x2x1 (by level) or -1,-1,0 (parents)."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("-o", "--option", metavar="KEY=VALUE", help="An option of the drafter, or of a peer."),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto, float32, bfloat16, float16, weights rounded to int8 or fp8, or a8: activations of eight bits."
    ),
]
Invariant = Annotated[
    bool | None,
    typer.Option(
        "--invariant/--no-invariant",
        help="A row's numbers depend on its own tokens only, to the bit; default: float32 on a CPU, where it is free.",
        show_default=False,
    ),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the Python code that a model brings along; off by default.")
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Keep the likeliest tokens up to this mass.")]
MinP = Annotated[float, typer.Option(help="Keep tokens of at least this share of the likeliest.")]
Seed = Annotated[
    int | None,
    typer.Option(
        help="The same seed gives the same text, by the rule coupled. With --verify block, token or a tree rule "
        "it does so only at a fixed --depth with the same drafter."
    ),
]
MaxTokens = Annotated[int, typer.Option(help="Stop after so many tokens.")]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Divide positive logits of tokens seen so far, prompt included; 1 is none.")
]
PresencePenalty = Annotated[float, typer.Option(help="Subtract once from logits of generated tokens; 0 is none.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Subtract for every time a token was generated; 0 is none.")]
System = Annotated[str | None, typer.Option(help="A system prompt, before the prompt in the chat template.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Raw = Annotated[bool, typer.Option("--raw", help="Take the prompt as it is, without the chat template.")]


PLAIN = frozenset(
    {"python", "threads", "rows", "cache", "eager", "memory", "tensor_parallel", "pipeline_parallel", "data_parallel"}
)


def settings(words: Sequence[str] | None) -> dict[str, str]:
    """`-o key=value` pairs."""
    pairs = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise ValueError(f"option {word!r} is not of the form key=value")
        pairs[key] = value
    return pairs


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from the argument, a file, or standard input."""
    if prompt is not None and file is not None:
        raise ValueError("give the prompt as an argument or with --file, not both")
    if prompt is not None and prompt != "-":
        return _filled(prompt)
    try:
        data = file.read_bytes() if file else sys.stdin.buffer.read()
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from error
    try:
        return _filled(data.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"{file or 'standard input'} is not UTF-8 text (byte {error.start})") from error


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("the prompt is empty; give it as an argument, with --file, or on standard input")
    return text


def shared(options: Mapping[str, str]) -> dict[str, str]:
    """The options that also belong to plain decoding: an interpreter, threads, rows; the others are a drafter's."""
    return {key: value for key, value in options.items() if key in PLAIN}
