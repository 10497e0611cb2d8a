"""`slipstream chat`: a conversation with history. Answers go to stdout, everything about them to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from slipstream.cli import options as given
from slipstream.cli.chat.line_input import read_line
from slipstream.cli.chat.slash_commands import run_command
from slipstream.cli.output.show import console
from slipstream.cli.output.token_view import legend

if TYPE_CHECKING:
    from slipstream.cli.chat.conversation import Conversation


def chat(
    model: given.ModelName = "smollm2-135m",
    engine: given.EngineName = "native",
    drafter: given.DrafterName = "ngram",
    verify: given.AnyRule = None,
    depth: given.Depth = None,
    tree: given.Shape = None,
    option: given.Settings = None,
    system: given.System = None,
    temperature: given.Temperature = 0.0,
    top_k: given.TopK = 0,
    top_p: given.TopP = 1.0,
    min_p: given.MinP = 0.0,
    seed: given.Seed = None,
    repetition_penalty: given.RepetitionPenalty = 1.0,
    presence_penalty: given.PresencePenalty = 0.0,
    frequency_penalty: given.FrequencyPenalty = 0.0,
    max_tokens: given.MaxTokens = 512,
    dtype: given.Dtype = "auto",
    device: given.Device = "auto",
    invariant: given.Invariant = None,
    trust_remote_code: given.TrustRemoteCode = False,
) -> None:
    """Talk to a model. /help lists the commands; Ctrl-C ends an answer, Ctrl-D the conversation."""
    from slipstream.cli.chat.conversation import Conversation
    from slipstream.core.sampling import Sampling
    from slipstream.engines import open_engine

    penalties = (repetition_penalty, presence_penalty, frequency_penalty)
    sampling = Sampling(temperature, top_k, top_p, min_p, seed, *penalties)
    loading: dict[str, Any] = {"dtype": dtype, "device": device, "invariant": invariant}
    loading["trust_remote_code"] = trust_remote_code
    if tree is not None:
        if engine != "native":
            raise ValueError(f"--tree needs the native engine; {engine} drafts as it does")
        loading["shape"] = tree
    switches = engine == "native"  # then every request names its depth, and /depth auto can be asked for
    built_depth, depth = (None, depth) if switches else (depth, None)
    with open_engine(engine, model, drafter, verify, built_depth, given.settings(option), **loading) as opened:
        talk = Conversation(opened, sampling, max_tokens, depth, system)
        talk.check_template()
        _note(f"{opened.label}. /help lists the commands; Ctrl-D ends the conversation.")
        if console().is_terminal and drafter != "none":
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
