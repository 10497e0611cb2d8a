"""`chat` as a user runs it, on the default model: answers on stdout, everything about them on stderr."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.model


@pytest.fixture
def chat(slipstream):
    def run(lines: str | bytes, *words: str):
        stdin = lines.encode() if isinstance(lines, str) else lines
        done = slipstream("chat", "--max-tokens", "8", *words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_a_conversation(chat):
    done = chat("My name is Ada.\n/stats\nWhat is my name?\n/depth 2\n/undo\n/stats\n/clear\n/quit\nnever read\n")
    assert len(done.stdout.strip().splitlines()) >= 2
    assert re.search(r"last answer: 8 tokens, [\d.]+ per second after a prompt of \d+ \(length\), tau", done.stderr)
    for expected in ("tau", "depth is 2", "taken back; 1 exchange left", "all 2 answers: 16 tokens", "forgotten"):
        assert expected in done.stderr
        assert expected not in done.stdout


def test_history_is_sent(chat):
    """The second prompt holds the first exchange, and not what was taken back."""
    done = chat("Hello.\n/stats\nHello.\n/stats\n/undo\nHello.\n/stats\n")
    prompts = [int(count) for count in re.findall(r"after a prompt of (\d+)", done.stderr)]
    assert prompts[0] < prompts[1] == prompts[2]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/nonsense", "there is no command /nonsense; /help lists them"),
        ("/stat", "there is no command /stat; did you mean /stats?"),
        ("/depth x", "depth is 'x'; it must be a number of tokens, 0 for plain decoding, or auto"),
        ("/depth", "depth is ''"),
        ("/undo", "there is nothing to take back"),
        ("/undo 3", "/undo takes no argument, and '3' was given"),
        ("/stats", "there is no answer yet"),
        ("word " * 9000, "the prompt has 9"),
    ],
)
def test_mistakes_are_named_and_end_nothing(chat, line, says):
    done = chat(f"{line}\nSay hi.\n")
    assert says in done.stderr
    assert done.stdout.strip()


def test_help_lists_every_command(chat):
    done = chat("/help\n")
    for command in ("/undo", "/clear", "/system TEXT", "/depth N", "/stats", "/quit", "//TEXT"):
        assert command in done.stderr


def test_a_line_that_is_not_utf8_does_not_end_the_conversation(chat):
    done = chat(b"My name is Ada.\n\xff\xfe bad\nWhat is my name?\n/stats\n")
    assert "this line is not UTF-8 text, so it was not sent" in done.stderr
    assert "all 2 answers" in done.stderr


def test_a_line_that_begins_with_a_slash_can_be_sent(chat):
    assert chat("//usr/bin is what?\n").stdout.strip()


def test_a_system_prompt_is_part_of_every_request(chat):
    system = "You are a very careful librarian who answers with few words. " * 4
    done = chat(f"Hello.\n/stats\n/system {system}\nHello.\n/stats\n/system\n/stats\n", "--system", system)
    first, second = (int(count) for count in re.findall(r"after a prompt of (\d+)", done.stderr)[:2])
    assert first > 40
    assert second > first
    assert "no system prompt" in done.stderr


def test_trees_penalties_and_depth(chat):
    words = ("-d", "eagle", "--tree", "4x2x1", "--temperature", "0.8", "--top-p", "0.9", "--seed", "3")
    done = chat("Count to ten.\n/stats\n", *words)
    drafted = re.search(r"of (\d+) drafted accepted, rule coupled, repeatable", done.stderr)
    assert drafted is not None
    assert int(drafted[1]) >= 8
    plain = chat("Count to ten.\n", "--max-tokens", "24")
    penalised = chat("Count to ten.\n", "--max-tokens", "24", "--repetition-penalty", "5")
    assert penalised.stdout != plain.stdout
    assert "nothing drafted" in chat("Count to ten.\n/stats\n", "--depth", "0").stderr


def test_depth_auto_takes_a_fixed_depth_back(chat, monkeypatch):
    from slipstream.cli.chat import conversation

    asked = []
    speculation = conversation.Speculation
    monkeypatch.setattr(conversation, "Speculation", lambda depth: asked.append(depth) or speculation(depth=depth))
    chat("hi\n/depth auto\nhi\n", "--depth", "1")
    assert asked == [1, None]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--engine", "nobody"), "nobody"),
        (("--engine", "transformers", "--tree", "4"), "--tree needs the native engine"),
        (("--repetition-penalty", "0"), "repetition_penalty is 0.0; it must be a positive number"),
        (("-m", "smollm2-135m-eagle"), "is a drafter; use it with its target, -m smollm2-135m -d smollm2-135m-eagle"),
    ],
)
def test_bad_flags_are_one_sentence_and_exit_code_2(slipstream, words, says):
    done = slipstream("chat", *words, stdin=b"hi\n")
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_another_engine(chat):
    done = chat("Hello.\n/depth 3\n/stats\n", "--engine", "transformers", "--drafter", "none")
    assert done.stdout.strip()
    assert "last answer: 8 tokens" in done.stderr


def test_a_plan_states_model_and_drafter(chat, slipstream):
    done = chat("Count: one two three one two\n/stats\n", "--plan", "ngram")
    assert re.search(r"last answer: 8 tokens, .* tau", done.stderr)
    both = slipstream("chat", "--plan", "ngram", "-d", "eagle", stdin=b"")
    assert both.returncode == 2
    assert "-d" in both.stderr
