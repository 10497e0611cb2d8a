"""`slipstream chat`: a conversation with history. Answers go to stdout, all other output to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from slipstream.cli import options as flags
from slipstream.cli.chat.line_input import read_line
from slipstream.cli.chat.slash_commands import run_command
from slipstream.cli.flag_groups import EngineFlags, LoadingFlags, SamplingFlags, with_groups
from slipstream.cli.output.show import console
from slipstream.cli.output.token_view import legend
from slipstream.cli.plan.flags import PlanSource, from_plan
from slipstream.cli.preload import importing

if TYPE_CHECKING:
    from slipstream.cli.chat.conversation import Conversation
    from slipstream.engines.base import Engine


@with_groups
def chat(
    context: typer.Context,
    *,
    source: EngineFlags,
    plan: PlanSource = None,
    tree: flags.Shape = None,
    option: flags.Settings = None,
    system: flags.System = None,
    sampling: SamplingFlags,
    max_tokens: flags.MaxTokens = 512,
    loading: LoadingFlags,
) -> None:
    """Talk to a model. /help lists the commands; Ctrl-C ends an answer, Ctrl-D the conversation."""
    with importing():
        from slipstream.cli.chat.conversation import Conversation

    params, planned = sampling.sampling(), from_plan(context, plan)
    # the native engine takes a depth per request, so /depth can change it
    depth = source.depth if source.engine == "native" and not planned else None
    with _opened(source, loading, tree, flags.settings(option), planned) as engine:
        conversation = Conversation(engine, params, max_tokens, depth, system)
        conversation.check_template()
        _note(f"{engine.label}. /help lists the commands; Ctrl-D ends the conversation.")
        if console().is_terminal and planned.get("drafter", source.drafter) != "none":
            console(stderr=True).print(legend(), soft_wrap=False)
        _converse(conversation)


def _opened(
    source: EngineFlags, loading: LoadingFlags, tree: str | None, options: dict[str, Any], planned: dict[str, Any]
) -> Engine:
    """The engine of the flags, or of the plan where there is one."""
    from slipstream.engines import open_engine

    if planned:
        return open_engine(source.engine, planned["model"], options=options, plan=planned["plan"])
    arguments: dict[str, Any] = dict(vars(loading))
    if tree is not None:
        if source.engine != "native":
            raise ValueError(f"--tree needs the native engine; {source.engine} drafts as it does")
        arguments["shape"] = tree
    depth = None if source.engine == "native" else source.depth
    return open_engine(source.engine, source.model, source.drafter, source.verify, depth, options, **arguments)


def _converse(conversation: Conversation) -> None:
    """Handle lines until the input ends. A mistake in a line does not end the conversation."""
    while True:
        try:
            line = read_line()
            if line is None or line == "/quit":
                return
            _handle_line(conversation, line)
        except (ValueError, FloatingPointError) as error:
            _note(str(error), "red")
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            _note("\nCtrl-D or /quit ends the conversation")


def _handle_line(conversation: Conversation, line: str) -> None:
    if line.startswith("//"):
        conversation.answer(line[1:])
    elif line.startswith("/"):
        _note(run_command(conversation, line))
    elif line:
        conversation.answer(line)


def _note(text: str, style: str = "dim") -> None:
    out = console(stderr=True)
    out.print(text, style=style, soft_wrap=not out.is_terminal)
