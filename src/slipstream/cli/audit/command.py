"""`slipstream audit`: is the output distributed exactly as the target alone would have it?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as given
from slipstream.cli.output.show import Json, check_line, console, mark, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slipstream.audit.check import Check
    from slipstream.audit.subject import Pair


def audit(
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Audit this model with a drafter, instead of tables.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("-e", "--engine", help="Audit this engine from outside: native, transformers, llamacpp or vllm."),
    ] = None,
    drafter: given.DrafterName = "ngram",
    verify: Annotated[str | None, typer.Option(help="One rule; all of them by default.")] = None,
    depth: Annotated[int | None, typer.Option(help="Drafted tokens per cycle: 2 on tables, 4 on a model.")] = None,
    option: given.Settings = None,
    tree: given.Shape = None,
    temperature: given.Temperature = 1.0,
    dtype: given.Dtype = "auto",
    device: given.Device = "auto",
    trust_remote_code: given.TrustRemoteCode = False,
    invariant: given.Invariant = None,
    table: Annotated[Path | None, typer.Option(help="Audit on these tables (JSON) instead of random ones.")] = None,
    seed: Annotated[int, typer.Option(help="Which random tables.")] = 2,
    samples: Annotated[
        int | None, typer.Option(help="Sampled continuations per rule: 20000 on tables, 256 on a model.")
    ] = None,
    self_test: Annotated[bool, typer.Option("--self-test", help="Plant known bugs and show which are caught.")] = False,
    as_json: Json = False,
) -> None:
    """Prove and test that speculation leaves the target's distribution as it is. Exit code 1 where it does not."""
    from slipstream.audit.run import audit_rules
    from slipstream.audit.subject import Pair
    from slipstream.core.rules import rules
    from slipstream.models.run.table_model import Table

    if tree is not None and (engine is not None or model is None):
        raise ValueError(
            "--tree is for the audit of a model, -m NAME, without --engine; tables have trees of their own"
        )
    if dtype != "auto" and (engine is not None or model is None):
        raise ValueError("--dtype is for the audit of a model, -m NAME, without --engine")
    if device != "auto" and engine is None and model is None:
        raise ValueError("--device is for the audit of a model, -m NAME; tables need none")
    if trust_remote_code and engine is None and model is None:
        raise ValueError("--trust-remote-code is for the audit of a model, -m NAME; tables bring no code")
    loading: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}
    if engine is not None:
        from slipstream.cli.audit.engine_audit import audit_peer

        settings = given.settings(option)
        name = model or "smollm2-135m"
        audit_peer(engine, name, drafter, verify, depth, settings, loading, temperature, samples, as_json)
        return
    names = [verify] if verify else rules.names()
    for name in names:
        rules.get(name)
    least = 200 if model else 1000
    if samples is not None and samples < least:
        raise ValueError(f"samples is {samples}; at least {least} are needed to see anything")
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be 0 or more")
    if model:
        loading |= {"dtype": dtype, "invariant": invariant}
        checks_to_run = _real(
            model, drafter, given.settings(option), names, depth or 4, tree, samples or 256, temperature, loading
        )
    else:
        if depth is not None and not 1 <= depth <= 3:
            raise ValueError(f"depth is {depth}; an audit by enumeration takes 1 to 3")
        pair = Pair(*Table.load(table)) if table else Pair.random(seed)
        if self_test:
            _self_test(pair, samples or 20000, as_json)
            return
        checks_to_run = audit_rules(names, pair, depth or 2, samples or 20000)
    out, checks = console(), []
    for check in checks_to_run:
        checks.append(check)
        out.print(check_line(check))
    passed = all(check.passed for check in checks)
    _finish(passed, "exact" if passed else "NOT exact", {"checks": [asdict(check) for check in checks]}, as_json)


PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that adds two numbers, and then call it twice.",
    "Repeat after me: the quick brown fox jumps over the lazy dog. The quick brown fox",
)


def _real(
    model: str,
    drafter: str,
    options: dict[str, str],
    names: Sequence[str],
    depth: int,
    tree: str | None,
    samples: int,
    temperature: float,
    loading: dict[str, Any],
) -> Iterator[Check]:
    from slipstream.audit.real import TREE, RealPair, audit_real
    from slipstream.drafters.build import build_drafter
    from slipstream.engines.native.build import build_target
    from slipstream.plan.tree_shapes import parse

    if not 1 <= depth <= 16:
        raise ValueError(f"depth is {depth}; it must be between 1 and 16")
    shape = TREE if tree is None else parse(tree)
    target = build_target(model, **loading)
    shape.check(target.model.vocab, target.model.context)
    text = target.text
    prompts = [text.encode(prompt) for prompt in PROMPTS]
    short = text.encode("The way to", raw=True)
    pair = RealPair(target.model, build_drafter(drafter, target, options), prompts, short, depth, shape)
    console().print(f"{target.label}, drafted by {drafter}, depth {depth}, temperature {temperature}", style="dim")
    yield from audit_real(pair, names, samples, temperature)


def _self_test(pair: Pair, samples: int, as_json: bool) -> None:
    from slipstream.audit.planted import PLANTED
    from slipstream.audit.run import self_test

    out, results = console(), []
    for caught in self_test(pair, samples):
        results.append(caught)
        out.print(mark(bool(caught.layers)), f"{caught.bug:46} caught by {', '.join(caught.layers) or 'nobody'}")
    seen = sum(bool(caught.layers) for caught in results)
    report = {"planted": len(PLANTED), "caught": seen, "bugs": [asdict(caught) for caught in results]}
    _finish(seen == len(PLANTED), f"{seen} of {len(PLANTED)} planted bugs caught", report, as_json)


def _finish(passed: bool, verdict: str, report: dict[str, object], as_json: bool) -> None:
    from slipstream.audit.check import LAYERS

    out = console()
    for layer, meaning in LAYERS.items():
        out.print(f"{layer:9} {meaning}", style="dim")
    out.print(verdict, style=f"bold {'green' if passed else 'red'}")
    if as_json:
        print_json({"passed": passed, **report, "layers": LAYERS})
    if not passed:
        raise typer.Exit(1)
