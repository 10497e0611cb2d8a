"""`slipstream audit --engine`: any engine, from outside."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import typer

from slipstream.cli.options import shared
from slipstream.cli.output.show import check_line, console, print_json

SAMPLES = 512
RULES = {"native": "block"}  # audited where no rule is named; a peer has its own
SHORT = "The way to go. The way to stay. The way to"  # repeats itself, for drafters that look things up
PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that adds two numbers, and then call it twice.",
    "Repeat after me: the quick brown fox jumps over the lazy dog. The quick brown fox",
)


def audit_peer(
    engine: str,
    model: str,
    drafter: str,
    verify: str | None,
    depth: int | None,
    options: Mapping[str, str],
    loading: Mapping[str, Any],
    temperature: float,
    samples: int | None,
    as_json: bool,
) -> None:
    """Open it with and without speculation, and the target beside it in float32; print and judge."""
    from slipstream.audit.engine import ENGINE_LAYERS, Box, audit_engine
    from slipstream.engines import open_engine
    from slipstream.engines.native.build import build_target

    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; sampling is audited above 0, and temperature 0 along with it")
    if samples is not None and samples < 200:
        raise ValueError(f"samples is {samples}; at least 200 are needed to see anything")
    if drafter == "none":
        raise ValueError("the drafter is none, so there is no speculation to audit; name a drafter")
    verify = verify or RULES.get(engine)
    out, checks = console(), []
    with ExitStack() as opened:
        fast = opened.enter_context(open_engine(engine, model, drafter, verify, depth or 3, options, **loading))
        plain = opened.enter_context(open_engine(engine, model, "none", verify, options=shared(options), **loading))
        target = build_target(model, "float32", **loading)
        ends = frozenset(token for token in target.text.ends if token < target.model.vocab)
        prompts = [target.text.encode(prompt) for prompt in PROMPTS]
        short = target.text.encode(SHORT, raw=True)
        box = Box(fast, plain, target.model, ends, short, prompts, temperature)
        about = {"engine": fast.version, "model": fast.label, "drafter": drafter, "depth": depth or 3}
        about["rule"] = verify or "its own"
        out.print(
            f"{fast.version}: {fast.label}, drafted by {drafter}, depth {depth or 3}, rule {about['rule']}, "
            f"T {temperature}",
            style="dim",
        )
        for check in audit_engine(box, samples or SAMPLES):
            checks.append(check)
            out.print(check_line(check))
    report: dict[str, Any] = {
        **about,
        "options": dict(options),
        "temperature": temperature,
        "samples": samples or SAMPLES,
        "checks": [asdict(check) for check in checks],
        "figures": box.figures,
        "layers": ENGINE_LAYERS,
    }
    passed = all(check.passed for check in checks)
    for layer, meaning in ENGINE_LAYERS.items():
        out.print(f"{layer:9} {meaning}", style="dim")
    verdict = "no deviation seen" if passed else "DEVIATES"
    out.print(verdict, style=f"bold {'green' if passed else 'red'}")
    if as_json:
        print_json({"passed": passed, **report})
    if not passed:
        raise typer.Exit(1)
