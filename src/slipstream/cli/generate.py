"""`slipstream generate`: text from a prompt, and what speculation made of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from slipstream.cli import options as given
from slipstream.cli.show import Json, console, print_json

if TYPE_CHECKING:
    from slipstream.core.sampling import Sampling
    from slipstream.engines.base import Chunk, Completion
    from slipstream.engines.native.engine import NativeEngine

COLOURS = {"accepted": "green", "recovered": "yellow", "bonus": "cyan", "plain": ""}


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; from standard input if not given.")] = None,
    model: given.ModelName = "smollm2-135m",
    drafter: given.DrafterName = "ngram",
    verify: given.Rule = "block",
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
    invariant: given.Invariant = False,
    compare: Annotated[bool, typer.Option("--compare", help="Run plain decoding as well and compare.")] = False,
    as_json: Json = False,
) -> None:
    """Generate text; accepted tokens green, recovered yellow, bonus cyan."""
    from slipstream.core.sampling import Sampling
    from slipstream.engines.native.engine import NativeEngine
    from slipstream.engines.native.scheduler import Limits

    text = given.read_prompt(prompt, file)
    sampling = Sampling(temperature, top_k, top_p, min_p, seed)
    wish = {"max_tokens": max_tokens, "stop": tuple(stop or ()), "raw": raw}
    settings, limits = given.settings(option), Limits(retained=0)  # one prompt: nothing to keep for another
    loading: dict[str, Any] = {"dtype": dtype, "invariant": invariant}
    with NativeEngine(model, drafter, verify, depth, options=settings, limits=limits, **loading) as engine:
        if compare:
            _warm(engine, text, raw)
        run = _run(engine, text, sampling, wish, None if as_json else console())
        report = run.report(engine)
        if compare:
            report |= _compare(engine, text, sampling, wish, run)
    if not as_json:
        _print(report)
    else:
        print_json(report)


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

    def report(self, engine: NativeEngine) -> dict[str, Any]:
        done = self.done
        return {
            "model": engine.target.label,
            "quantised": engine.target.found.quantised,
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


def _run(
    engine: NativeEngine, prompt: str, sampling: Sampling, wish: dict[str, Any], out: Console | None = None
) -> Run:
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


def _warm(engine: NativeEngine, prompt: str, raw: bool) -> None:
    """A few tokens first, so that neither side of a comparison pays for starting up."""
    from slipstream.core.sampling import Sampling

    engine.generate(prompt, Sampling(temperature=0), max_tokens=4, raw=raw)


def _compare(engine: NativeEngine, prompt: str, sampling: Sampling, wish: dict[str, Any], run: Run) -> dict[str, Any]:
    """Plain decoding of the target, and of the draft model where there is one, in the same process."""
    from slipstream.engines.base import Speculation
    from slipstream.engines.native.compare import draft_speed

    plain = _run(engine, prompt, sampling, {**wish, "speculation": Speculation(off=True)})
    comparable = sampling.temperature == 0 or (engine.rule_name == "coupled" and sampling.seed is not None)
    report = {
        "plain_tokens_per_second": round(plain.speed, 2),
        "speedup": round(run.speed / plain.speed, 3),
        "identical": run.done.tokens == plain.done.tokens if comparable else None,
    }
    draft = draft_speed(engine, run.done)
    return report | ({"draft_tokens_per_second": round(draft, 2)} if draft else {})


def _print(report: dict[str, Any]) -> None:
    out = console()
    kept = " ".join(f"{share:.0%}" for share in report["acceptance"])
    out.print(
        f"[dim]{report['model']}: {report['tokens']} tokens ({report['finish']}), "
        f"{report['tokens_per_second']} per second, tau {report['tau']}, "
        f"accepted by position {kept or '-'}, {report['wasted']} of {report['drafted']} drafted wasted[/]"
    )
    if "speedup" in report:
        same = {True: "same tokens", False: "[red]other tokens[/]", None: "sampled, not comparable token by token"}
        out.print(
            f"[dim]plain decoding {report['plain_tokens_per_second']} per second: "
            f"{report['speedup']} times as fast, {same[report['identical']]}[/]"
        )
