"""`slipstream generate`: text from a prompt, and what speculation made of it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from slipstream.cli import options as given
from slipstream.cli.show import Json, console, print_json
from slipstream.cli.tree_view import Onlooker, drawing

if TYPE_CHECKING:
    from slipstream.core.sampling import Sampling
    from slipstream.engines.base import Chunk, Completion, Engine
    from slipstream.engines.native.engine import NativeEngine

COLOURS = {"accepted": "green", "recovered": "yellow", "bonus": "cyan", "plain": ""}


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; from standard input if not given.")] = None,
    model: given.ModelName = "smollm2-135m",
    engine: given.EngineName = "native",
    drafter: given.DrafterName = "ngram",
    verify: given.AnyRule = None,
    depth: given.Depth = None,
    option: given.Settings = None,
    temperature: given.Temperature = 0.0,
    top_k: given.TopK = 0,
    top_p: given.TopP = 1.0,
    min_p: given.MinP = 0.0,
    seed: given.Seed = None,
    max_tokens: given.MaxTokens = 256,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    raw: given.Raw = False,
    dtype: given.Dtype = "auto",
    invariant: given.Invariant = None,
    compare: Annotated[bool, typer.Option("--compare", help="Run plain decoding as well and compare.")] = False,
    tree: given.Shape = None,
    show_tree: Annotated[bool, typer.Option("--show-tree", help="Draw the draft that was accepted furthest.")] = False,
    as_json: Json = False,
) -> None:
    """Generate text; accepted tokens green, recovered yellow, bonus cyan."""
    from slipstream.core.sampling import Sampling
    from slipstream.engines import open_engine
    from slipstream.engines.native.scheduler import Limits

    text = given.read_prompt(prompt, file)
    sampling = Sampling(temperature, top_k, top_p, min_p, seed)
    wish = {"max_tokens": max_tokens, "stop": tuple(stop or ()), "raw": raw}
    loading: dict[str, Any] = {"dtype": dtype, "invariant": invariant}
    if engine == "native":
        loading["limits"] = Limits(retained=0)  # one prompt: nothing to keep for another
    onlooker = Onlooker()
    loading |= _growing(engine, tree, onlooker if show_tree else None)
    settings = given.settings(option)
    with open_engine(engine, model, drafter, verify, depth, settings, **loading) as made:
        if compare:
            _warm(made, text, raw)
        run = _run(made, text, sampling, wish, None if as_json else console())
        report = run.report(made)
        if compare and engine == "native":
            report |= _compare(made, text, sampling, wish, run)  # type: ignore[arg-type]
    if compare and engine != "native":  # after the first is closed: a peer may take the whole machine
        with open_engine(engine, model, "none", **loading, options=given.shared(settings)) as made:
            report |= _compare_peer(made, text, sampling, wish, run)
    if show_tree:
        report["tree"] = onlooker.nodes
    if not as_json:
        if show_tree and onlooker.nodes:
            console().print(drawing(onlooker, lambda token: made.target.text.decode([token])))  # type: ignore[attr-defined]
        _print(report)
    else:
        print_json(report)
    if report.get("real_difference"):
        raise typer.Exit(1)


def _growing(engine: str, tree: str | None, watch: Onlooker | None) -> dict[str, Any]:
    """What trees, and looking at them, ask of the engine."""
    asked = {"shape": tree, "watch": watch}
    if engine != "native" and any(asked.values()):
        raise ValueError(f"--tree and --show-tree need the native engine; {engine} drafts as it does")
    return {key: value for key, value in asked.items() if value is not None}


@dataclass(frozen=True)
class Run:
    """One generation and how long it took."""

    done: Completion
    seconds: float
    first: float  # seconds until the first chunk
    early: int  # tokens of the first chunk

    @property
    def speed(self) -> float:
        """Tokens per second once the first ones are there; reading the prompt is told apart."""
        later = len(self.done.tokens) - self.early
        if later <= 0:
            return len(self.done.tokens) / self.seconds
        return later / (self.seconds - self.first)

    def report(self, engine: Engine) -> dict[str, Any]:
        done = self.done
        return {
            "engine": engine.version,
            "model": engine.label,
            "quantised": engine.quantised,
            "rule": done.rule,
            "lossless": done.lossless,
            "repeatable": done.repeatable,
            "text": done.text,
            "tokens": len(done.tokens),
            "prompt_tokens": done.prompt_tokens,
            "finish": done.finish,
            "tau": round(done.tau, 3),
            "acceptance": [round(share, 3) for share in done.acceptance],
            "drafted": sum(done.tally.drafted),
            "wasted": done.tally.wasted,
            "tokens_per_second": round(self.speed, 2),
            "seconds_to_first_token": round(self.first, 3),
        }


def _run(engine: Engine, prompt: str, sampling: Sampling, wish: dict[str, Any], out: Console | None = None) -> Run:
    """Generate once, showing the text as it comes; Ctrl-C ends it with what there is."""
    from slipstream.engines.base import Wish

    (ticket,) = engine.submit(prompt, sampling, Wish(**wish))
    started = time.perf_counter()
    first, early = 0.0, 0
    try:
        for chunk in ticket:
            if not first:
                first, early = time.perf_counter() - started, len(chunk.tokens)
            if out is not None:
                _show(out, chunk)
    except KeyboardInterrupt:
        ticket.cancel()
    done = ticket.result()
    seconds = time.perf_counter() - started
    if out is not None:
        out.print()
    if done.error:
        raise ValueError(done.error)
    return Run(done, seconds, first, early)


def _show(out: Console, chunk: Chunk) -> None:
    for piece, origin in zip(chunk.pieces, chunk.origins, strict=True):
        out.print(Text(piece, style=COLOURS[origin]), end="")
    out.print(Text(chunk.text[len("".join(chunk.pieces)) :]), end="")


def _warm(engine: Engine, prompt: str, raw: bool) -> None:
    """A few tokens first, so that neither side of a comparison pays for starting up."""
    from slipstream.core.sampling import Sampling

    engine.generate(prompt, Sampling(temperature=0), max_tokens=4, raw=raw)


def _compare(engine: NativeEngine, prompt: str, sampling: Sampling, wish: dict[str, Any], run: Run) -> dict[str, Any]:
    """Plain decoding of the target, and of the draft model where there is one, in the same process."""
    from slipstream.engines.base import Speculation
    from slipstream.engines.native.compare import comparable, draft_speed

    plain = _run(engine, prompt, sampling, {**wish, "speculation": Speculation(off=True)})
    report = {
        "plain_tokens_per_second": round(plain.speed, 2),
        "speedup": round(run.speed / plain.speed, 3),
        "identical": None,
    }
    if comparable(run.done):
        report |= _agreement(engine, prompt, sampling, wish, run.done.tokens, plain.done.tokens)
    draft = draft_speed(engine, run.done)
    return report | ({"draft_tokens_per_second": round(draft, 2)} if draft else {})


def _compare_peer(plain: Engine, prompt: str, sampling: Sampling, wish: dict[str, Any], run: Run) -> dict[str, Any]:
    """A peer's plain decoding. Its numbers cannot be computed again here, so other tokens are counted, not judged."""
    _warm(plain, prompt, wish["raw"])
    slow = _run(plain, prompt, sampling, wish)
    same = run.done.tokens == slow.done.tokens if sampling.temperature == 0 else None
    report: dict[str, Any] = {
        "plain_tokens_per_second": round(slow.speed, 2),
        "speedup": round(run.speed / slow.speed, 3),
        "identical": same,
    }
    return report


def _agreement(
    engine: NativeEngine, prompt: str, sampling: Sampling, wish: dict[str, Any], ours: list[int], plain: list[int]
) -> dict[str, Any]:
    """Whether the tokens agree; where they do not, whether ties flipped or something is wrong."""
    from slipstream.core.types import Request
    from slipstream.engines.native.compare import agreement

    text = engine.target.text
    request = Request(text.encode(prompt, wish["raw"]), sampling, wish["max_tokens"])
    found = agreement(engine.target.model, request, ours, plain)
    places = [
        {
            "position": place.position,
            "tokens": [text.decode([token]) for token in place.tokens],
            "gap": _finite(place.gap),
            "numerics": _finite(place.numerics),
            "tie": place.tie,
        }
        for place in found.partings
    ]
    report = {"identical": found.identical, "flipped_ties": found.ties, "real_difference": found.real is not None}
    return report | {"differences": places}


def _finite(value: float) -> float | None:
    """JSON has no infinity: a token that is cut off (top-k, top-p, min-p) has no distance."""
    return value if math.isfinite(value) else None


def _print(report: dict[str, Any]) -> None:
    out = console()
    kept = " ".join(f"{share:.0%}" for share in report["acceptance"])
    out.print(
        f"[dim]{report['model']}: {report['tokens']} tokens ({report['finish']}), "
        f"{report['tokens_per_second']} per second, tau {report['tau']}, "
        f"accepted by position {kept or '-'}, {report['wasted']} of {report['drafted']} drafted wasted, "
        f"rule {report['rule']}{_repeats(report)}[/]"
    )
    if "speedup" in report:
        out.print(
            f"[dim]plain decoding {report['plain_tokens_per_second']} per second: "
            f"{report['speedup']} times as fast, {_same(report)}[/]"
        )
    for place in report.get("differences", ()):
        ours, plain = (escape(repr(token)) for token in place["tokens"])
        gap, numerics = ("cut off" if place[key] is None else f"{place[key]:.2g}" for key in ("gap", "numerics"))
        what = f"at token {place['position']} {ours}, plain decoding {plain}: {gap} apart"
        if place["tie"]:
            out.print(f"[dim]a tie flipped {what}, where rounding is worth {numerics}[/]")
        else:
            out.print(f"[bold red]WRONG {what}, and rounding explains only {numerics}: please report it[/]")


def _repeats(report: dict[str, Any]) -> str:
    """Whether the same command gives the same text again, where that is promised."""
    ways = {"bit for bit": ", repeatable", "up to ties": ", repeatable up to ties"}
    return ways.get(report["repeatable"], "")


def _same(report: dict[str, Any]) -> str:
    if report["identical"] is None:
        return "sampled, not comparable token by token"
    if report["identical"]:
        return "same tokens"
    ties = f" ({report['flipped_ties']} flipped ties)" if "flipped_ties" in report else ""
    return f"other tokens{ties}"
