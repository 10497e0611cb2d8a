"""Flags that several commands share, and the parsing of `-o key=value`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
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
EngineName = Annotated[str, typer.Option("-e", "--engine", help="The engine: native, transformers, llamacpp or vllm.")]
AnyRule = Annotated[
    str | None,
    typer.Option(
        "--verify",
        help=f"The rule: {', '.join(rules.names())}. block and token verify chains, the others trees as well; "
        "temperature 0 is always greedy. "
        "Default: coupled with --seed, else block, for trees no_replace.",
    ),
]
Depth = Annotated[int | None, typer.Option(help="Drafted tokens per cycle. Default: chosen by cost and acceptance.")]
Shape = Annotated[
    str | None,
    typer.Option("--tree", metavar="SHAPE", help="Draft trees: 24 (nodes), 4x2x1 (by level) or -1,-1,0 (parents)."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("-o", "--option", metavar="KEY=VALUE", help="An option of the drafter or of the engine."),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto, float32, bfloat16 or float16; int8 or fp8 for weights rounded to 8 bits; a8 for 8-bit activations."
    ),
]
Invariant = Annotated[
    bool | None,
    typer.Option(
        "--invariant/--no-invariant",
        help="Results do not depend on other requests, to the bit. Default: on for float32 on a CPU.",
        show_default=False,
    ),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code from a model's repository; off by default.")
]
Watts = Annotated[
    float | None,
    typer.Option(metavar="POWER", help="Estimate joules by this power in watts, in place of an energy counter."),
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Keep the most probable tokens up to this total probability.")]
MinP = Annotated[float, typer.Option(help="Keep tokens of at least this share of the largest probability.")]
Seed = Annotated[
    int | None,
    typer.Option(
        help="The same seed gives the same text under the rule coupled. "
        "Under other rules it does so only with a fixed --depth and the same drafter."
    ),
]
MaxTokens = Annotated[int, typer.Option(help="The maximum number of generated tokens.")]
MinTokens = Annotated[int, typer.Option(help="The minimum number of generated tokens.")]
Samples = Annotated[int, typer.Option("-n", "--n", help="The number of samples.")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")]
StopTokenIds = Annotated[list[int] | None, typer.Option(help="End after this token id; may be given several times.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Continue after the model's own end tokens.")]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Divide positive logits of tokens seen so far, prompt included; 1 is none.")
]
PresencePenalty = Annotated[float, typer.Option(help="Subtract once from logits of generated tokens; 0 is none.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Subtract for each time a token was generated; 0 is none.")]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="TOKEN=VALUE", help="Add to a token's logit; TOKEN is an id, or text of one token."),
]
Logprobs = Annotated[
    int | None, typer.Option(metavar="N", help="Report log probabilities of each token and the N most probable.")
]
JsonSchema = Annotated[
    str | None,
    typer.Option(metavar="FILE|TEXT", help="Generate JSON that follows this schema; true is any JSON."),
]
Regex = Annotated[str | None, typer.Option(metavar="PATTERN", help="Generate text that matches this pattern.")]
GrammarSource = Annotated[
    str | None, typer.Option("--grammar", metavar="FILE|TEXT", help="Generate text of this EBNF grammar, from root on.")
]
Prediction = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draft from this text, which the output will nearly repeat.")
]
System = Annotated[str | None, typer.Option(help="A system prompt, before the prompt in the chat template.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
ProfileName = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Start with this profile; default: the one in the cache that fits; none: without."
    ),
]
Learn = Annotated[bool, typer.Option("--learn", help="Add what the policy learns to the profile, at the end.")]
Raw = Annotated[bool, typer.Option("--raw", help="Use the prompt without the chat template.")]


# options of engines, which plain decoding uses too; all other options belong to a drafter
ENGINE_OPTIONS = frozenset(
    {"python", "threads", "rows", "cache", "eager", "memory", "tensor_parallel", "pipeline_parallel", "data_parallel"}
)


def settings(arguments: Sequence[str] | None) -> dict[str, str]:
    """The values of `-o key=value`."""
    pairs = {}
    for argument in arguments or ():
        key, equals, value = argument.partition("=")
        if not (key and equals):
            raise ValueError(f"option {argument!r} is not of the form key=value")
        pairs[key] = value
    return pairs


def engine_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that plain decoding uses too."""
    return {key: value for key, value in options.items() if key in ENGINE_OPTIONS}
