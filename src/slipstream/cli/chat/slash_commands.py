"""The commands of `chat`: lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from slipstream.cli.generate.statistics_view import REPEATS

if TYPE_CHECKING:
    from slipstream.bench.measure.measurement import Measurement
    from slipstream.cli.chat.conversation import Conversation
    from slipstream.engines.base import Completion, SpeculationStats

COMMANDS = {
    "/help": "this list",
    "/undo": "take the last exchange back",
    "/clear": "forget all exchanges",
    "/system TEXT": "set the system prompt; without a text there is none",
    "/depth N": "draft N tokens per cycle; 0 is plain decoding, auto lets cost and acceptance decide",
    "/stats": "speed and drafting of the last answer, and of all",
    "/quit": "end the conversation, as Ctrl-D does; Ctrl-C ends an answer",
    "//TEXT": "send a message that begins with a slash",
}


def run_command(conversation: Conversation, line: str) -> str:
    """Run a command and return its message. ValueError if the command or its argument is wrong."""
    word, _, rest = line.partition(" ")
    command = _ACTIONS.get(word)
    if command is None:
        near = get_close_matches(word, _ACTIONS, 1)
        hint = f"did you mean {near[0]}?" if near else "/help lists them"
        raise ValueError(f"there is no command {word}; {hint}")
    rest = rest.strip()
    if rest and word not in ("/system", "/depth"):
        raise ValueError(f"{word} takes no argument, and {rest!r} was given")
    return command(conversation, rest)


def _help(conversation: Conversation, rest: str) -> str:
    return "\n".join(f"{command:14}{meaning}" for command, meaning in COMMANDS.items())


def _undo(conversation: Conversation, rest: str) -> str:
    if not conversation.messages:
        raise ValueError("there is nothing to take back")
    del conversation.messages[-2:]
    return f"taken back; {_exchanges(conversation)} left"


def _clear(conversation: Conversation, rest: str) -> str:
    forgotten = _exchanges(conversation)
    conversation.messages.clear()
    return f"{forgotten} forgotten"


def _exchanges(conversation: Conversation) -> str:
    count = len(conversation.messages) // 2
    return f"{count} exchange{'' if count == 1 else 's'}"


def _system(conversation: Conversation, rest: str) -> str:
    before, conversation.system = conversation.system, rest or None
    try:
        conversation.check_template()
    except ValueError:
        conversation.system = before
        raise
    return "system prompt set" if rest else "no system prompt"


def _depth(conversation: Conversation, rest: str) -> str:
    if rest != "auto" and not rest.isdecimal():
        raise ValueError(f"depth is {rest!r}; it must be a number of tokens, 0 for plain decoding, or auto")
    if not conversation.engine.capabilities.switch:
        raise ValueError(f"{conversation.engine.version} drafts alike for all answers; start chat with --depth {rest}")
    conversation.depth = None if rest == "auto" else int(rest)
    return f"depth is {rest}"


def _stats(conversation: Conversation, rest: str) -> str:
    if conversation.last is None:
        raise ValueError("there is no answer yet")
    (answer,) = conversation.last.samples
    prompt = f"after a prompt of {answer.prompt_tokens} ({answer.finish_reason})"
    last = f"{_speed(conversation.last.times)} {prompt}, {_drafting(conversation.last.stats)}, {_guarantee(answer)}"
    lines = [conversation.engine.label, f"last answer: {last}"]
    if conversation.answers > 1:
        lines.append(
            f"all {conversation.answers} answers: {_speed(conversation.total)}, {_drafting(conversation.total.tally)}"
        )
    return "\n".join(lines)


def _speed(times: Measurement) -> str:
    return f"{times.tokens} tokens, {times.speed:.1f} per second"


def _guarantee(completion: Completion) -> str:
    """The rule that an answer was verified by, whether it is lossy, and whether the same seed gives it again."""
    lossy = ", lossy" if completion.lossless is False else ""
    return f"rule {completion.rule}{lossy}{REPEATS.get(completion.repeatable or '', '')}"


def _drafting(tally: SpeculationStats) -> str:
    drafted = sum(tally.drafted)
    accepted = f"{drafted - tally.wasted} of {drafted} drafted accepted" if drafted else "nothing drafted"
    return f"tau {tally.tau:.2f}, {accepted}"


_ACTIONS: dict[str, Callable[[Conversation, str], str]] = {
    "/help": _help,
    "/undo": _undo,
    "/clear": _clear,
    "/system": _system,
    "/depth": _depth,
    "/stats": _stats,
}
