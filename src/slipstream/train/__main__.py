"""`python -m slipstream.train`: `slipstream train` on machines with torch, transformers and numpy alone."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from slipstream.train.report import draw_curves, summary, write_card
from slipstream.train.run import train


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m slipstream.train")
    parser.add_argument("method")
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--data", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("-o", "--option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float)
    arguments = parser.parse_args()
    began = time.monotonic()

    def show(phase: str, done: int, total: int, figures: dict[str, Any]) -> None:
        if phase != "training" or figures:
            seconds = time.monotonic() - began
            print(f"{seconds:7.1f} s  {phase} {done}/{total} {figures or ''}", file=sys.stderr, flush=True)

    options = dict(option.partition("=")[::2] for option in arguments.option)
    try:
        outcome = train(
            arguments.method,
            arguments.model,
            arguments.data,
            arguments.out,
            options,
            device=arguments.device,
            minutes=arguments.minutes,
            on_progress=show,
        )
    except ValueError as error:
        sys.exit(f"slipstream: {error}")
    write_card(outcome, " ".join(["python -m slipstream.train", *sys.argv[1:]]), "unknown")
    draw_curves(arguments.out)
    print(json.dumps(summary(outcome)))


if __name__ == "__main__":
    main()
