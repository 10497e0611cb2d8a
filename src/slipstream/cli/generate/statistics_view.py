"""Prints the statistics of `generate` to stderr, so that stdout holds the text alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from slipstream.cli.output.show import console

if TYPE_CHECKING:
    from rich.console import Console

REPEATS = {"bit for bit": ", repeatable bit for bit", "up to ties": ", repeatable up to ties"}


def show_statistics(report: dict[str, Any]) -> None:
    """Print speed and acceptance of a finished run, and its comparison if there is one."""
    out = console(stderr=True)
    lossless = {True: ", lossless", False: ", lossy", None: ""}[report["lossless"]]
    guarantee = f"rule {report['rule']}{lossless}{REPEATS.get(report['repeatable'], '')}"
    drafter = "plain decoding" if report["drafter"] == "none" else f"drafted by {report['drafter']}"
    out.print(f"{report['model']}, {drafter}, {guarantee}", style="dim")
    out.print(
        f"{report['completion_tokens']} tokens ({_finish(report)}), {report['tokens_per_second']} per second; "
        f"tau {report['tau']}, {_accepted(report)}",
        style="dim",
    )
    if report.get("drafting_note"):
        out.print(report["drafting_note"], style="dim")
    if "ratio" in report:
        out.print(_speed(report), style="bold" if report["gain"] else "")
        out.print(_same(report), style="dim")
    for place in report.get("differences", ()):
        _show_difference(out, place)


def _finish(report: dict[str, Any]) -> str:
    return ", ".join(choice["finish_reason"] for choice in report.get("choices", [report]))


def _accepted(report: dict[str, Any]) -> str:
    if not report["drafted"]:
        return "nothing drafted"
    positions = " ".join(f"{share:.0%}" for share in report["acceptance"])
    return f"{report['drafted'] - report['wasted']} of {report['drafted']} drafted accepted (by position {positions})"


def _speed(report: dict[str, Any]) -> str:
    if report["ratio"] is None:
        return f"compared with plain decoding: {report['note']}"
    speeds = f"{report['tokens_per_second']} against {report['plain_tokens_per_second']} tokens per second"
    interval = "" if report["ratio_low"] is None else f" (95 % {report['ratio_low']:.2f} to {report['ratio_high']:.2f})"
    figure = f"{report['ratio']:.2f}{interval} times plain decoding's speed"
    return f"{report['note']}: {figure}, {report['pairs']} pairs, {speeds}"


def _same(report: dict[str, Any]) -> str:
    if report["identical"] is None:
        return "sampled tokens, which need not be the same"
    if report["identical"]:
        return "same tokens as plain decoding"
    ties = f" ({report['flipped_ties']} flipped ties)" if "flipped_ties" in report else ""
    return f"other tokens than plain decoding{ties}"


def _show_difference(out: Console, place: dict[str, Any]) -> None:
    ours, plain = (repr(token) for token in place["tokens"])
    gap, numerics = ("cut off" if place[key] is None else f"{place[key]:.2g}" for key in ("gap", "numerics"))
    difference = f"at token {place['position']} {ours}, plain decoding {plain}: {gap} apart"
    if place["tie"]:
        out.print(f"a tie flipped {difference}, where rounding is worth {numerics}", style="dim")
    else:
        out.print(f"WRONG {difference}, and rounding explains only {numerics}: please report it", style="bold red")


def show_logprobs(report: dict[str, Any]) -> None:
    """Print each token with its probability and the most probable alternatives."""
    for choice in report.get("choices", [report]):
        if "logprobs" not in choice:
            continue
        table = Table("token", "id", "logprob", "p", "likeliest", box=None, header_style="bold")
        for entry in choice["logprobs"]["content"]:
            others = ", ".join(
                f"{other['token']!r} {math.exp(other['logprob']):.3f}" for other in entry["top_logprobs"]
            )
            figures = f"{entry['logprob']:.4f}", f"{math.exp(entry['logprob']):.3f}"
            table.add_row(Text(repr(entry["token"])), str(entry["token_id"]), *figures, Text(others))
        console(stderr=True).print(table)
