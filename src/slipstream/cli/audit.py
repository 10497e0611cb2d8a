"""`slipstream audit`: is the output distributed exactly as the target alone would have it?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.show import Json, console, mark, print_json

if TYPE_CHECKING:
    from slipstream.audit.subject import Pair


def audit(
    verify: Annotated[str | None, typer.Option(help="One rule; all of them by default.")] = None,
    depth: Annotated[int, typer.Option(help="Drafted tokens per cycle.")] = 2,
    table: Annotated[Path | None, typer.Option(help="Audit on these tables (JSON) instead of random ones.")] = None,
    seed: Annotated[int, typer.Option(help="Which random tables.")] = 2,
    samples: Annotated[int, typer.Option(help="Sampled continuations per rule.")] = 20000,
    self_test: Annotated[bool, typer.Option("--self-test", help="Plant known bugs and show which are caught.")] = False,
    as_json: Json = False,
) -> None:
    """Prove and test that speculation leaves the target's distribution as it is. Exit code 1 where it does not."""
    from slipstream.audit.run import audit_rules
    from slipstream.audit.subject import Pair
    from slipstream.core.rules import rules
    from slipstream.models.table import Table

    if not 1 <= depth <= 3:
        raise ValueError(f"depth is {depth}; an audit by enumeration takes 1 to 3")
    if samples < 1000:
        raise ValueError(f"samples is {samples}; at least 1000 are needed to see anything")
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be 0 or more")
    names = [verify] if verify else rules.names()
    for name in names:
        rules.get(name)
    pair = Pair(*Table.load(table)) if table else Pair.random(seed)
    if self_test:
        _self_test(pair, samples, as_json)
        return
    out, checks = console(), []
    for check in audit_rules(names, pair, depth, samples):
        checks.append(check)
        out.print(f"{mark(check.passed)} {check.name:46} [dim]{check.layer:9}[/] {check.detail}")
    passed = all(check.passed for check in checks)
    _finish(passed, "exact" if passed else "NOT exact", {"checks": [asdict(check) for check in checks]}, as_json)


def _self_test(pair: Pair, samples: int, as_json: bool) -> None:
    from slipstream.audit.planted import PLANTED
    from slipstream.audit.run import self_test

    out, found = console(), []
    for caught in self_test(pair, samples):
        found.append(caught)
        out.print(f"{mark(bool(caught.layers))} {caught.bug:46} caught by {', '.join(caught.layers) or 'nobody'}")
    seen = sum(bool(caught.layers) for caught in found)
    report = {"planted": len(PLANTED), "caught": seen, "bugs": [asdict(caught) for caught in found]}
    _finish(seen == len(PLANTED), f"{seen} of {len(PLANTED)} planted bugs caught", report, as_json)


def _finish(passed: bool, verdict: str, report: dict[str, object], as_json: bool) -> None:
    from slipstream.audit.check import LAYERS

    out = console()
    for layer, meaning in LAYERS.items():
        out.print(f"[dim]{layer:9} {meaning}[/]")
    out.print(f"[bold {'green' if passed else 'red'}]{verdict}[/]")
    if as_json:
        print_json({"passed": passed, **report, "layers": LAYERS})
    if not passed:
        raise typer.Exit(1)
