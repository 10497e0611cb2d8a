"""`slipstream chat`: a conversation with history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipstream.cli import options as given
from slipstream.cli.generate import _show
from slipstream.cli.show import console

if TYPE_CHECKING:
    from slipstream.core.sampling import Sampling
    from slipstream.engines.native.engine import NativeEngine

HELP = "/undo takes the last exchange back, /stats shows the counts, /depth n sets the depth (/depth auto), /quit ends"


@dataclass
class Conversation:
    engine: NativeEngine
    sampling: Sampling
    max_tokens: int
    depth: int | None
    messages: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, line: str) -> None:
        from slipstream.engines.base import Speculation, Wish

        asked = [*self.messages, {"role": "user", "content": line}]
        wish = Wish(max_tokens=self.max_tokens, speculation=Speculation(depth=self.depth))
        (ticket,) = self.engine.submit(asked, self.sampling, wish)
        out = console()
        try:
            for chunk in ticket:
                _show(out, chunk)
        except KeyboardInterrupt:
            ticket.cancel()
        done = ticket.result()
        out.print()
        if done.error:
            raise ValueError(done.error)
        self.messages = [*asked, {"role": "assistant", "content": done.text}]

    def command(self, line: str) -> str:
        """Carry out a /command; what to say about it."""
        word, _, rest = line.partition(" ")
        if word == "/undo":
            if not self.messages:
                return "there is nothing to take back"
            del self.messages[-2:]
            return f"taken back; {len(self.messages) // 2} exchanges left"
        if word == "/stats":
            stats = self.engine.stats
            waste = f"{stats['wasted']} of {stats['drafted']} drafted wasted"
            return f"{stats['tokens']} tokens, tau {stats['tau']:.2f}, {waste}"
        if word == "/depth" and (rest == "auto" or rest.isdigit()):
            self.depth = None if rest == "auto" else int(rest)
            return f"depth is {rest}"
        return HELP


def chat(
    model: given.ModelName = "smollm2-135m",
    drafter: given.DrafterName = "ngram",
    verify: given.Rule = None,
    depth: given.Depth = None,
    option: given.Settings = None,
    temperature: given.Temperature = 0.0,
    top_k: given.TopK = 0,
    top_p: given.TopP = 1.0,
    min_p: given.MinP = 0.0,
    seed: given.Seed = None,
    max_tokens: given.MaxTokens = 512,
    dtype: given.Dtype = "auto",
    invariant: given.Invariant = None,
) -> None:
    """Talk to a model. /undo, /stats and /depth n are commands; Ctrl-C ends an answer, Ctrl-D the conversation."""
    from slipstream.core.sampling import Sampling
    from slipstream.engines.native.engine import NativeEngine

    sampling = Sampling(temperature, top_k, top_p, min_p, seed)
    out = console()
    loading: dict[str, Any] = {"dtype": dtype, "invariant": invariant}
    with NativeEngine(model, drafter, verify, depth, options=given.settings(option), **loading) as engine:
        if not engine.target.text.instruct:
            raise ValueError(f"{engine.target.found.name} has no chat template; use generate --raw")
        talk = Conversation(engine, sampling, max_tokens, depth)
        out.print(f"[dim]{engine.target.label}. {HELP}[/]")
        while (line := _ask()) is not None and line != "/quit":
            if line.startswith("/"):
                out.print(f"[dim]{talk.command(line)}[/]")
            elif line:
                _try(talk, line)


def _try(talk: Conversation, line: str) -> None:
    """A message that does not fit the context is no reason to lose the conversation."""
    try:
        talk.answer(line)
    except ValueError as error:
        console().print(f"[red]{error}[/] [dim](/undo takes the last exchange back)[/]")


def _ask() -> str | None:
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        return None
