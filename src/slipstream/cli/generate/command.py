"""`slipstream generate`: writes the text of a prompt to stdout, and statistics of speculation to stderr."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli import options as flags
from slipstream.cli.flag_groups import EngineFlags, LoadingFlags, ProfileFlags, SamplingFlags, with_groups
from slipstream.cli.generate.constraints import read_biases, read_constraint, token_biases
from slipstream.cli.generate.prompt import as_conversation, read_prompt, read_text
from slipstream.cli.output.show import INTERRUPTED, Json
from slipstream.cli.plan.flags import PlanSource, from_plan
from slipstream.cli.preload import importing


@with_groups
def generate(
    *,
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; piped standard input is appended.")] = None,
    source: EngineFlags,
    option: flags.Settings = None,
    plan: PlanSource = None,
    known: ProfileFlags,
    sampling: SamplingFlags,
    logit_bias: flags.LogitBias = None,
    max_tokens: flags.MaxTokens = 256,
    min_tokens: flags.MinTokens = 0,
    n: flags.Samples = 1,
    stop: flags.Stop = None,
    stop_token_ids: flags.StopTokenIds = None,
    ignore_eos: flags.IgnoreEos = False,
    logprobs: flags.Logprobs = None,
    json_schema: flags.JsonSchema = None,
    regex: flags.Regex = None,
    grammar: flags.GrammarSource = None,
    system: flags.System = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    prediction: flags.Prediction = None,
    raw: flags.Raw = False,
    loading: LoadingFlags,
    compare: Annotated[
        bool, typer.Option("--compare", help="Run plain decoding as well, in pairs, and compare.")
    ] = False,
    tree: flags.Shape = None,
    show_tree: Annotated[bool, typer.Option("--show-tree", help="Draw the draft that was accepted furthest.")] = False,
    as_json: Json = False,
) -> None:
    """Generate text. On a terminal accepted tokens are green, recovered ones yellow, bonus tokens cyan."""
    with importing(context):
        from slipstream.cli.generate.session import EngineSetup, run_generate
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
        prediction=None if prediction is None else read_text(prediction),
        **read_constraint(json_schema, regex, grammar),
    )
    biases, own = read_biases(logit_bias), flags.settings(option)
    setup = EngineSetup(**vars(source), options=own, loading=vars(loading), tree=tree, show_tree=show_tree, known=known)
    setup = replace(setup, **from_plan(context, plan))
    with setup.open() as engine:
        task = GenerationTask(conversation, replace(params, logit_bias=token_biases(biases, engine.text)), options)
        report = run_generate(setup, engine, task, compare, as_json)
    if code := INTERRUPTED if report["interrupted"] else int(report.get("real_difference", False)):
        raise typer.Exit(code)
