"""`slipstream generate`: text from a prompt on stdout, and on stderr what speculation did for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli import options as given
from slipstream.cli.generate.constraints import read_biases, read_constraint, token_biases
from slipstream.cli.generate.prompt import as_conversation, read_prompt
from slipstream.cli.output.show import INTERRUPTED, Json


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; what is piped in follows it.")] = None,
    model: given.ModelName = "smollm2-135m",
    engine: given.EngineName = "native",
    drafter: given.DrafterName = "ngram",
    verify: given.AnyRule = None,
    depth: given.Depth = None,
    option: given.Settings = None,
    temperature: given.Temperature = 0.0,
    top_k: given.TopK = 0,
    top_p: given.TopP = 1.0,
    min_p: given.MinP = 0.0,
    seed: given.Seed = None,
    repetition_penalty: given.RepetitionPenalty = 1.0,
    presence_penalty: given.PresencePenalty = 0.0,
    frequency_penalty: given.FrequencyPenalty = 0.0,
    logit_bias: given.LogitBias = None,
    max_tokens: given.MaxTokens = 256,
    min_tokens: given.MinTokens = 0,
    n: given.Samples = 1,
    stop: given.Stop = None,
    stop_token_ids: given.StopTokenIds = None,
    ignore_eos: given.IgnoreEos = False,
    logprobs: given.Logprobs = None,
    json_schema: given.JsonSchema = None,
    regex: given.Regex = None,
    grammar: given.GrammarSource = None,
    system: given.System = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    raw: given.Raw = False,
    dtype: given.Dtype = "auto",
    device: given.Device = "auto",
    invariant: given.Invariant = None,
    trust_remote_code: given.TrustRemoteCode = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Run plain decoding as well, in pairs, and compare.")
    ] = False,
    tree: given.Shape = None,
    show_tree: Annotated[bool, typer.Option("--show-tree", help="Draw the draft that was accepted furthest.")] = False,
    as_json: Json = False,
) -> None:
    """Generate text. On a terminal accepted tokens are green, recovered ones yellow, bonus tokens cyan."""
    from slipstream.cli.generate.session import Opening, generated
    from slipstream.cli.generation import GenerationTask
    from slipstream.core.sampling import Sampling
    from slipstream.engines.base import GenerationOptions

    conversation = as_conversation(read_prompt(prompt, file), system)
    penalties = (repetition_penalty, presence_penalty, frequency_penalty)
    sampling = Sampling(temperature, top_k, top_p, min_p, seed, *penalties)
    options = GenerationOptions(
        max_tokens,
        min_tokens,
        tuple(stop or ()),
        frozenset(stop_token_ids or ()),
        ignore_eos,
        logprobs,
        n,
        raw=raw,
        **read_constraint(json_schema, regex, grammar),
    )
    biases = read_biases(logit_bias)
    loading = {"dtype": dtype, "device": device, "invariant": invariant, "trust_remote_code": trust_remote_code}
    opening = Opening(engine, model, drafter, verify, depth, given.settings(option), loading, tree, show_tree)
    with opening.open() as opened:
        task = GenerationTask(conversation, replace(sampling, logit_bias=token_biases(biases, opened.text)), options)
        report = generated(opening, opened, task, compare, as_json)
    if report["interrupted"]:
        raise typer.Exit(INTERRUPTED)
    if report.get("real_difference"):
        raise typer.Exit(1)
