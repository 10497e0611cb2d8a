"""`slipstream generate`: text from a prompt on stdout, and on stderr what speculation did for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli import options as given
from slipstream.cli.flag_groups import EngineFlags, LoadingFlags, SamplingFlags, with_groups
from slipstream.cli.generate.constraints import read_biases, read_constraint, token_biases
from slipstream.cli.generate.prompt import as_conversation, read_prompt
from slipstream.cli.output.show import INTERRUPTED, Json


@with_groups
def generate(
    *,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; what is piped in follows it.")] = None,
    source: EngineFlags,
    option: given.Settings = None,
    sampling: SamplingFlags,
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
    loading: LoadingFlags,
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
    from slipstream.engines.base import GenerationOptions

    conversation, params = as_conversation(read_prompt(prompt, file), system), sampling.sampling()
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
    biases, settings = read_biases(logit_bias), given.settings(option)
    opening = Opening(**vars(source), options=settings, loading=vars(loading), tree=tree, show_tree=show_tree)
    with opening.open() as opened:
        task = GenerationTask(conversation, replace(params, logit_bias=token_biases(biases, opened.text)), options)
        report = generated(opening, opened, task, compare, as_json)
    if report["interrupted"]:
        raise typer.Exit(INTERRUPTED)
    if report.get("real_difference"):
        raise typer.Exit(1)
