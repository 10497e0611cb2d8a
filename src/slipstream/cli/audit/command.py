"""`slipstream audit`: is the output distributed exactly as the target alone would have it?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as flags
from slipstream.cli.audit.check_runner import conclude, print_layers, run_checks, run_planned
from slipstream.cli.output.show import Json, console, mark
from slipstream.cli.plan.flags import PlanSource, audited_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.audit.check import Check
    from slipstream.audit.subject import Pair


def audit(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Audit this model with a drafter, instead of tables.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("-e", "--engine", help="Audit this engine from outside: native, transformers, llamacpp or vllm."),
    ] = None,
    drafter: flags.DrafterName = "ngram",
    verify: Annotated[str | None, typer.Option(help="One rule; all of them by default.")] = None,
    depth: Annotated[int | None, typer.Option(help="Drafted tokens per cycle: 2 on tables, 4 on a model.")] = None,
    option: flags.Settings = None,
    tree: flags.Shape = None,
    plan: PlanSource = None,
    temperature: flags.Temperature = 1.0,
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    trust_remote_code: flags.TrustRemoteCode = False,
    invariant: flags.Invariant = None,
    table: Annotated[Path | None, typer.Option(help="Audit on these tables (JSON) instead of random ones.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of the random tables.")] = 2,
    samples: Annotated[
        int | None, typer.Option(help="Sampled continuations per rule: 20000 on tables, 256 on a model.")
    ] = None,
    self_test: Annotated[bool, typer.Option("--self-test", help="Plant known bugs and show which are caught.")] = False,
    as_json: Json = False,
) -> None:
    """Prove and test that speculation keeps the target's distribution. Exit code 1 if it does not."""
    settings: dict[str, Any] = dict(flags.settings(option))
    if plan is not None:
        stated = audited_plan(context, plan)
        model, drafter, settings, verify, depth, tree = stated[:6]
        dtype, device, invariant, trust_remote_code = stated[6:]
    _check_scope(model, engine, tree, dtype, device, trust_remote_code)
    names = _rule_names(verify, on_tables=model is None and engine is None)
    loading: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}
    if engine is not None:
        from slipstream.cli.audit.engine_audit import audit_peer

        name = model or "smollm2-135m"
        audit_peer(engine, name, drafter, verify, depth, settings, loading, temperature, samples, as_json)
        return
    _check_numbers(samples, 200 if model else 1000, seed)
    if model:
        loading |= {"dtype": dtype, "invariant": invariant}
        checks = _audit_model(model, drafter, settings, names, depth or 4, tree, samples or 256, temperature, loading)
        _finish(checks, as_json)
    else:
        _audit_tables(table, seed, depth, names, samples or 20000, self_test, as_json)


def _check_scope(
    model: str | None, engine: str | None, tree: str | None, dtype: str, device: str, trust_remote_code: bool
) -> None:
    """Raise ValueError for flags that the chosen kind of audit does not use."""
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


def _rule_names(verify: str | None, on_tables: bool) -> list[str]:
    """The rules to audit. Lossy ones declare laws of their own, which are enumerated on tables only."""
    from slipstream.core.rules import rules

    if verify is None:
        return rules.names() if on_tables else rules.lossless()
    if not rules.get(verify).lossless and not on_tables:
        raise ValueError(
            f"the rule {verify} is lossy, and is audited on tables against its own law; leave -m and -e out"
        )
    rules.make(verify)
    return [verify]


def _check_numbers(samples: int | None, least: int, seed: int) -> None:
    if samples is not None and samples < least:
        raise ValueError(f"samples is {samples}; at least {least} are needed to see anything")
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be 0 or more")


def _audit_tables(
    table: Path | None,
    seed: int,
    depth: int | None,
    names: Sequence[str],
    samples: int,
    self_test: bool,
    as_json: bool,
) -> None:
    from slipstream.audit.subject import Pair
    from slipstream.audit.tables.costs import one_thread, unit_seconds
    from slipstream.audit.tables.run import plan_rules
    from slipstream.models.run.table_model import Table

    if depth is not None and not 1 <= depth <= 3:
        raise ValueError(f"depth is {depth}; an audit by enumeration takes 1 to 3")
    pair = Pair(*Table.load(table)) if table else Pair.random(seed)
    with one_thread():
        if self_test:
            _self_test(pair, samples, as_json)
            return
        checks = run_checks(console(), plan_rules(names, pair, depth or 2, samples), unit_seconds(pair))
    _finish(checks, as_json)


def _audit_model(
    model: str,
    drafter: str,
    options: dict[str, str],
    names: Sequence[str],
    depth: int,
    tree: str | None,
    samples: int,
    temperature: float,
    loading: dict[str, Any],
) -> list[Check]:
    from slipstream.audit.prompts import PROMPTS, SHORT
    from slipstream.audit.real import TREE, RealPair, pass_seconds, plan_real
    from slipstream.drafters.build import build_drafter
    from slipstream.engines.native.build import build_target
    from slipstream.plan.policy.tree_shapes import parse

    if not 1 <= depth <= 16:
        raise ValueError(f"depth is {depth}; it must be between 1 and 16")
    if drafter == "none":
        raise ValueError("the drafter is none, so there is no speculation to audit; name a drafter")
    shape = TREE if tree is None else parse(tree)
    target = build_target(model, **loading)
    shape.check(target.model.vocab, target.model.context)
    prompts = [target.text.encode(prompt) for prompt in PROMPTS]
    short = target.text.encode(SHORT, raw=True)
    pair = RealPair(target.model, build_drafter(drafter, target, options), prompts, short, depth, shape)
    out = console()
    out.print(f"{target.label}, drafted by {drafter}, depth {depth}, temperature {temperature}", style="dim")
    return run_checks(out, plan_real(pair, names, samples, temperature), pass_seconds(pair))


def _self_test(pair: Pair, samples: int, as_json: bool) -> None:
    from slipstream.audit.check import LAYERS
    from slipstream.audit.planted.chain import PLANTED
    from slipstream.audit.tables.costs import unit_seconds
    from slipstream.audit.tables.run import plan_self_test

    out, bugs, width = console(), [], max(map(len, PLANTED))
    for number, caught in run_planned(out, plan_self_test(pair, samples), unit_seconds(pair)):
        bugs.append(caught)
        by = ", ".join(caught.layers) or "no layer"
        out.print(mark(bool(caught.layers)), f"{number} {caught.bug:{width}} caught by {by}")
    seen = sum(bool(caught.layers) for caught in bugs)
    report = {"planted": len(PLANTED), "caught": seen, "bugs": [asdict(caught) for caught in bugs], "layers": LAYERS}
    conclude(seen == len(PLANTED), f"{seen} of {len(PLANTED)} planted bugs caught", report, as_json)


def _finish(checks: Sequence[Check], as_json: bool) -> None:
    from slipstream.audit.check import LAYERS

    print_layers(console(), LAYERS, checks)
    failed = sum(not check.passed for check in checks)
    verdict = f"NOT exact: {failed} of {len(checks)} checks failed" if failed else "exact"
    conclude(not failed, verdict, {"checks": [asdict(check) for check in checks], "layers": LAYERS}, as_json)
