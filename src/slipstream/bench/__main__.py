"""`python -m slipstream.bench`: `slipstream bench` for machines with only torch, transformers and numpy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from slipstream.bench.forecast.check import forecast_defaults
from slipstream.bench.matrix import Matrix
from slipstream.bench.session import BenchOptions, bench, rounded
from slipstream.bench.table import show
from slipstream.bench.tasks.arguments import MAX_TOKENS, curve_scope, route_setup, task_load, task_setup
from slipstream.bench.tasks.curve import answer_curve, curve_rules, run_curve, show_curve
from slipstream.bench.tasks.run_file import QUALITY_BATCH
from slipstream.bench.tasks.task_session import TaskOptions, show_task, task_bench


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m slipstream.bench", description=bench.__doc__)
    add, defaults, matrix = parser.add_argument, BenchOptions(), Matrix()
    add("-m", "--model", default=defaults.model, help="a catalog name, Hugging Face id, folder or GGUF file")
    add("--engine", action="append", help=f"may be repeated; default: {matrix.engines[0]}")
    add("-d", "--drafter", action="append", help="may be repeated; plain decoding is always measured too")
    add("--depth", default=matrix.depth, help="such as auto,2,4 or 1-6")
    add("--verify", default=matrix.verify, help="such as block,coupled; auto is block, and the own rule of others")
    add("--batch", default=matrix.batch, help="numbers of simultaneous requests, such as 1,8")
    add("--temperature", default=matrix.temperature, help="such as 0,0.8")
    add("--workload", default=defaults.workload, help="names or .jsonl files, such as code,chat:3,my.jsonl")
    add("--max-tokens", type=int, help=f"default: {defaults.max_tokens}, with --task {MAX_TOKENS}")
    add("--repeats", type=int, default=defaults.repeats)
    add("--hold", type=int, help="engines in memory at a time; default: all")
    add("--dtype", default=defaults.dtype, help="auto, float32, bfloat16, float16, int8, fp8 or a8")
    add("--device", default=defaults.device, help="auto, cpu or cuda")
    add("-o", "--option", action="append", metavar="KEY=VALUE", help="an option of the drafters, or NAME.KEY=VALUE")
    add("--out", type=Path, help="a folder for journal, results and report; an interrupted run resumes there")
    add("--against", type=Path, help="compare with the results.json of another run")
    add("--forecast", action="store_true", help="forecast every workload from the others, and show the errors")
    add("--sample", type=int, default=4, help="with --forecast: further prompts, whose acceptance a third one uses")
    add("--task", help="grade answers: humaneval, mbpp, gsm8k or a .jsonl file of problems; several with commas")
    add("--small", help="the small model of a route or a curve")
    add("--route", help="request or token; lossy")
    add("--threshold", type=float, help="of the route, between 0 and 1")
    add("--score", default="mean", help="of the request route: mean, quantile, entropy or agreement")
    add("--curve", action="store_true", help="quality against time and energy; needs --task and --small")
    add("--answers-only", action="store_true", help="a curve that is graded later, by the same command without this")
    add("--limit", type=int, help="of a curve: time so many problems, and take the quality of all of them")
    add("--quality-batch", type=int, help=f"with --limit: problems at a time for quality; default: {QUALITY_BATCH}")
    add("--time-limit", type=float, help="of a curve, in seconds: begin no run that would take longer than is left")
    add("--json", action="store_true", help="print one JSON object as the last line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    args = parse(arguments)
    command = ["python", "-m", "slipstream.bench", *arguments]
    try:
        if args.task:
            return _graded(args, command)
        results = bench(_options(args, command))
    except (ValueError, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    show(results)
    if args.json:
        print(json.dumps(rounded(results)), flush=True)
    return 0


def _graded(args: argparse.Namespace, command: Sequence[str]) -> int:
    """`--task`, with or without a route or a curve."""
    loading = {"dtype": args.dtype, "device": args.device}
    verify = None if args.verify == "auto" else args.verify
    own = None if args.curve else verify
    drafters, options = args.drafter or [], _settings(args)
    setup = task_setup(args.model, args.engine or [], drafters, own, args.depth, options, loading, args.batch)
    load = task_load(args.temperature, args.max_tokens, args.batch)
    if args.answers_only and not (args.curve and args.out):
        raise ValueError("--answers-only needs --curve and --out DIR, where the answers are kept")
    route = route_setup(args.route, args.small, args.threshold, args.score, args.curve)
    scope = curve_scope(args.curve, args.limit, args.quality_batch, args.time_limit)
    task = TaskOptions(args.task, setup, load, route, args.out, command, scope)
    if args.curve:
        names = curve_rules(args.verify)
        if args.answers_only:
            answer_curve(task, args.small, names, args.score)
            return 0
        results = run_curve(task, args.small, names, args.score)
        show_curve(results)
    else:
        results = task_bench(task)
        show_task(results)
    if args.json:
        print(json.dumps(rounded(results)), flush=True)
    return 0


def _settings(args: argparse.Namespace) -> dict[str, str]:
    """The values of `-o key=value`."""
    options = {}
    for option in args.option or ():
        key, equals, value = option.partition("=")
        if not (key and equals):
            raise ValueError(f"option {option!r} is not of the form key=value")
        options[key] = value
    return options


def _check_task(args: argparse.Namespace) -> None:
    """Raise ValueError for arguments of routes and curves without a task."""
    given = [name for name in ("route", "small", "threshold", "curve") if getattr(args, name)]
    if given:
        raise ValueError(f"--{given[0]} is given without --task; a route is measured on the problems of a task")


def _options(args: argparse.Namespace, command: Sequence[str]) -> BenchOptions:
    _check_task(args)
    drafters, depth, workload = args.drafter, args.depth, args.workload
    if args.forecast:
        drafters, depth, workload = forecast_defaults(args.model, drafters, depth, workload)
    matrix = Matrix(
        tuple(args.engine or Matrix().engines),
        tuple(drafters or Matrix().drafters),
        depth,
        args.verify,
        args.batch,
        args.temperature,
        _settings(args),
    )
    return BenchOptions(
        args.model,
        matrix,
        workload,
        BenchOptions().max_tokens if args.max_tokens is None else args.max_tokens,
        args.repeats,
        args.out,
        args.against,
        args.dtype,
        command,
        args.hold,
        args.device,
        forecast=args.forecast,
        sample=args.sample,
    )


if __name__ == "__main__":
    sys.exit(main())
