"""`python -m slipstream.bench`: the verb for machines with torch, transformers and numpy alone."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from slipstream.bench.matrix import Matrix
from slipstream.bench.session import BenchOptions, bench, rounded
from slipstream.bench.table import show


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m slipstream.bench", description=bench.__doc__)
    add, fixed, shown = parser.add_argument, BenchOptions(), Matrix()
    add("-m", "--model", default=fixed.model, help="a catalog name, Hugging Face id, folder or GGUF file")
    add("--engine", action="append", help=f"may be repeated; {shown.engines[0]} if not given")
    add("-d", "--drafter", action="append", help="may be repeated; plain decoding is always measured too")
    add("--depth", default=shown.depth, help="such as auto,2,4 or 1-6")
    add("--verify", default=shown.verify, help="such as block,coupled; auto is block, and a peer's own")
    add("--batch", default=shown.batch, help="such as 1,8")
    add("--temperature", default=shown.temperature, help="such as 0,0.8")
    add("--workload", default=fixed.workload, help="names or .jsonl files, such as code,chat:3,my.jsonl")
    add("--max-tokens", type=int, default=fixed.max_tokens)
    add("--repeats", type=int, default=fixed.repeats)
    add("--hold", type=int, help="engines open at a time, where memory is short; all if not given")
    add("--dtype", default=fixed.dtype, help="auto, float32, bfloat16, float16, int8, fp8 or a8")
    add("--device", default=fixed.device, help="auto, cpu or cuda")
    add("-o", "--option", action="append", metavar="KEY=VALUE", help="an option of the drafters, or NAME.KEY=VALUE")
    add("--out", type=Path, help="a folder for journal, results and report; a killed run goes on there")
    add("--against", type=Path, help="compare with the results.json of another run")
    add("--json", action="store_true", help="print one JSON object as the last line")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if words is None else words)
    args = parse(given)
    try:
        results = bench(_options(args, ["python", "-m", "slipstream.bench", *given]))
    except (ValueError, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    show(results)
    if args.json:
        print(json.dumps(rounded(results)), flush=True)
    return 0


def _options(args: argparse.Namespace, command: Sequence[str]) -> BenchOptions:
    options = {}
    for word in args.option or ():
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise ValueError(f"option {word!r} is not of the form key=value")
        options[key] = value
    matrix = Matrix(
        tuple(args.engine or Matrix().engines),
        tuple(args.drafter or Matrix().drafters),
        args.depth,
        args.verify,
        args.batch,
        args.temperature,
        options,
    )
    load = args.workload, args.max_tokens, args.repeats
    return BenchOptions(args.model, matrix, *load, args.out, args.against, args.dtype, command, args.hold, args.device)


if __name__ == "__main__":
    sys.exit(main())
