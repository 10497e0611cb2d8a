"""`slipstream chat`: a conversation with history. Answers go to stdout, everything about them to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from slipstream.cli import options as given
from slipstream.cli.chat.line_input import read_line
from slipstream.cli.chat.slash_commands import run_command
from slipstream.cli.flag_groups import EngineFlags, LoadingFlags, SamplingFlags, with_groups
from slipstream.cli.output.show import console
from slipstream.cli.output.token_view import legend

if TYPE_CHECKING:
    from slipstream.cli.chat.conversation import Conversation


@with_groups
def chat(
    *,
    source: EngineFlags,
    tree: given.Shape = None,
    option: given.Settings = None,
    system: given.System = None,
    sampling: SamplingFlags,
    max_tokens: given.MaxTokens = 512,
    loading: LoadingFlags,
) -> None:
    """Talk to a model. /help lists the commands; Ctrl-C ends an answer, Ctrl-D the conversation."""
    from slipstream.cli.chat.conversation import Conversation
    from slipstream.engines import open_engine

    params, depth = sampling.sampling(), source.depth
    more: dict[str, Any] = dict(vars(loading))
    if tree is not None:
        if source.engine != "native":
            raise ValueError(f"--tree needs the native engine; {source.engine} drafts as it does")
        more["shape"] = tree
    switches = source.engine == "native"  # then every request names its depth, and /depth auto can be asked for
    built_depth, depth = (None, depth) if switches else (depth, None)
    with open_engine(
        source.engine, source.model, source.drafter, source.verify, built_depth, given.settings(option), **more
    ) as opened:
        talk = Conversation(opened, params, max_tokens, depth, system)
        talk.check_template()
        _note(f"{opened.label}. /help lists the commands; Ctrl-D ends the conversation.")
        if console().is_terminal and source.drafter != "none":
            console(stderr=True).print(legend(), soft_wrap=False)
        _converse(talk)


def _converse(talk: Conversation) -> None:
    """Read lines until there are no more. A mistake in one of them does not end the conversation."""
    while True:
        try:
            line = read_line()
            if line is None or line == "/quit":
                return
            _take(talk, line)
        except (ValueError, FloatingPointError) as error:
            _note(str(error), "red")
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            _note("\nCtrl-D or /quit ends the conversation")


def _take(talk: Conversation, line: str) -> None:
    if line.startswith("//"):
        talk.answer(line[1:])
    elif line.startswith("/"):
        _note(run_command(talk, line))
    elif line:
        talk.answer(line)


def _note(text: str, style: str = "dim") -> None:
    out = console(stderr=True)
    out.print(text, style=style, soft_wrap=not out.is_terminal)
