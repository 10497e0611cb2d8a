"""Options several verbs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from slipstream.core.rules import rules
from slipstream.drafters import drafters

ModelName = Annotated[str, typer.Option("-m", "--model", help="A catalog name, Hugging Face id, folder or GGUF file.")]
DrafterName = Annotated[
    str,
    typer.Option(
        "-d", "--drafter", help=f"{', '.join(drafters.names())}, the folder of a trained drafter, or a model's name."
    ),
]
EngineName = Annotated[
    str, typer.Option("-e", "--engine", help="Who runs the model: native, transformers, llamacpp or vllm.")
]
AnyRule = Annotated[
    str | None,
    typer.Option(
        "--verify",
        help=f"The rule: {', '.join(rules.names())}. block and token verify chains, the others trees as well; "
        "temperature 0 is always greedy. "
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
        help="The same seed gives the same text, by the rule coupled. "
        "With --verify block, token or a tree rule it does so only at a fixed --depth with the same drafter."
    ),
]
MaxTokens = Annotated[int, typer.Option(help="Stop after so many tokens.")]
MinTokens = Annotated[int, typer.Option(help="Do not end before so many tokens.")]
Samples = Annotated[int, typer.Option("-n", "--n", help="So many samples of the prompt.")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")]
StopTokenIds = Annotated[list[int] | None, typer.Option(help="End after this token id; may be given several times.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's own end tokens.")]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Divide positive logits of tokens seen so far, prompt included; 1 is none.")
]
PresencePenalty = Annotated[float, typer.Option(help="Subtract once from logits of generated tokens; 0 is none.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Subtract for every time a token was generated; 0 is none.")]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="TOKEN=VALUE", help="Add to a token's logit; TOKEN is an id, or text of one token."),
]
Logprobs = Annotated[
    int | None, typer.Option(metavar="N", help="Each token's log probability and those of the N likeliest.")
]
JsonSchema = Annotated[
    str | None,
    typer.Option(metavar="FILE|TEXT", help="Generate JSON that follows this schema; true is any JSON."),
]
Regex = Annotated[str | None, typer.Option(metavar="PATTERN", help="Generate text that matches this pattern.")]
GrammarSource = Annotated[
    str | None, typer.Option("--grammar", metavar="FILE|TEXT", help="Generate text of this EBNF grammar, from root on.")
]
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


def shared(options: Mapping[str, str]) -> dict[str, str]:
    """The options that also belong to plain decoding: an interpreter, threads, rows; the others are a drafter's."""
    return {key: value for key, value in options.items() if key in PLAIN}
