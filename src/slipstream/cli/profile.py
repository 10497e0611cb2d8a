"""`slipstream profile`: measure costs and acceptance on this machine, once, for forecasts and policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as flags
from slipstream.cli.output.show import Json, console, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from slipstream.plan.profile.profile import Profile


def profile(
    model: flags.ModelName = "smollm2-135m",
    drafter: Annotated[
        list[str] | None,
        typer.Option("-d", "--drafter", help="May be given several times; default: ngram and shipped ones."),
    ] = None,
    option: flags.Settings = None,
    depth: Annotated[str, typer.Option(help="Depths, such as 1,4,8.")] = "1,4,8",
    batch: Annotated[str, typer.Option(help="Numbers of simultaneous requests, such as 1,4.")] = "1,4",
    temperature: Annotated[str, typer.Option(help="Temperatures, such as 0,1.")] = "0,1",
    workload: Annotated[
        str, typer.Option(help="Names or .jsonl files, such as code:2,chat:2.")
    ] = "code:2,chat:2,maths:2,summary:2",
    max_tokens: flags.MaxTokens = 32,
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    trust_remote_code: flags.TrustRemoteCode = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The profile; default: a file in the cache.")] = None,
    merge: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A profile to merge in; may be given several times.")
    ] = None,
    watts: flags.Watts = None,
    as_json: Json = False,
) -> None:
    """Measure a model and its drafters on this machine: cost curves and acceptance, in about two minutes.

    Engines start with the profile in the cache, and `plan forecast` and `plan advise` read it. An interrupted profile
    goes on where it was."""
    from slipstream.bench.matrix import numbers, temperatures
    from slipstream.bench.measure.energy import power_model
    from slipstream.bench.profile.assemble import make_profile
    from slipstream.bench.profile.measure import ProfileSettings
    from slipstream.engines.drafter_catalogue import candidates
    from slipstream.engines.native.build import build_target

    options = flags.settings(option)
    drafters: dict[str, dict[str, Any]] = {name: dict(options) for name in drafter} if drafter else candidates(model)
    settings = ProfileSettings(
        drafters, sorted(numbers("depth", depth, 1)), numbers("batch", batch, 1), temperatures(temperature), workload,
        max_tokens,
    )  # fmt: skip
    target = build_target(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    with power_model(watts):
        measured, path = make_profile(target, settings, out, merge or [])
    out_console = console()
    out_console.print(f"{target.label} on {measured.key.machine}", style="dim")
    for table in (acceptance_table(measured), cost_table(measured)):
        out_console.print(table, soft_wrap=False)
    if measured.energy.missing is None:
        out_console.print(energy_table(measured), soft_wrap=False)
    else:
        out_console.print(f"no joules per token: {measured.energy.missing}", style="dim")
    out_console.print(f"The profile is {path}.")
    if as_json:
        print_json({"path": str(path), "profile": measured.to_json()})


def acceptance_table(profile: Profile) -> Table:
    """Acceptance of first candidates by drafter, workload and temperature: of token 1, 2, … given those before it."""
    rows: dict[tuple[str, str, float], dict[int, str]] = {}
    for count in profile.acceptance:
        if count.rank == 0 and count.depth <= 4:
            shown = rows.setdefault((count.drafter, count.workload, count.temperature), {})
            shown[count.depth] = f"{count.accepted / count.tried:.2f}"
    table = _table("drafter", "workload", "temperature", "token 1", "2", "3", "4")
    for (drafter, workload, temperature), cells in rows.items():
        table.add_row(drafter, workload, f"{temperature:g}", *(cells.get(d, "") for d in range(1, 5)))
    return table


def cost_table(profile: Profile) -> Table:
    """Milliseconds of a row's cycle by drafter, depth and batch: medians of the runs."""
    from slipstream.bench.statistics import median

    times: dict[tuple[str, int, int], list[float]] = {}
    for run in profile.runs:
        times.setdefault((run.drafter, run.depth, run.batch), []).append(1000 * run.batch * run.cycle_seconds)
    table = _table("drafter", "depth", "batch", "ms per cycle")
    for (drafter, depth, batch), values in sorted(times.items()):
        table.add_row(drafter, str(depth), str(batch), f"{median(values):.2f}")
    return table


def energy_table(profile: Profile) -> Table:
    """Joules per token by phase, and what was spent on rejected tokens, by drafter."""
    phases = ("draft", "score", "verify", "host")
    table = _table(
        "drafter", "depth", "batch", "J/token", *phases, "idle", "wasted", "plain", "closure error", "source"
    )
    for figures in profile.energy.phases:
        if "missing" in figures:
            table.add_row(figures["drafter"], *["-"] * 11, figures["missing"])
            continue
        joules = [figures["joules_per_token"], *(figures["phases"][name] for name in phases), figures["idle"]]
        joules += [figures["wasted"], figures["plain_joules_per_token"]]
        shown = ["-" if value is None else f"{value:.3g}" for value in joules]
        about = figures["drafter"], str(figures["depth"]), str(figures["batch"])
        table.add_row(*about, *shown, f"{100 * figures['closure_error']:+.0f} %", figures["source"])
    return table


def _table(*names: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    words: Sequence[str] = ("drafter", "workload")
    for name in names:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=True)
    return table
