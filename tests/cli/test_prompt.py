"""Where a prompt comes from: an argument, a file, and what is piped in."""

from __future__ import annotations

import os
import pty
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from slipstream.cli.generate import prompt as prompts
from slipstream.cli.generate.prompt import as_conversation, read_prompt


@pytest.fixture
def opened():
    """Streams that are closed after the test."""
    with ExitStack() as stack:
        yield lambda descriptor: stack.enter_context(os.fdopen(descriptor))


@pytest.fixture
def piped(monkeypatch, opened):
    """Put bytes on standard input through a real pipe."""

    def put(data: bytes) -> None:
        reader, writer = os.pipe()
        os.write(writer, data)
        os.close(writer)
        monkeypatch.setattr(sys, "stdin", opened(reader))

    return put


def test_an_argument_and_a_pipe_are_joined(piped):
    piped(b"a b c\n")
    assert read_prompt("Summarise this:", None) == "Summarise this:\n\na b c\n"


def test_a_file_and_a_pipe_are_joined(piped, tmp_path):
    (tmp_path / "task.txt").write_text("Summarise this:\n")
    piped(b"a b c")
    assert read_prompt(None, tmp_path / "task.txt") == "Summarise this:\n\na b c"


def test_one_source_is_taken_as_it_is(piped):
    piped(b" a\n\n")
    assert read_prompt(None, None) == " a\n\n"
    piped(b"")
    assert read_prompt("hi\n", None) == "hi\n"
    piped(b"x")
    assert read_prompt("-", None) == "x"


def test_a_file_on_standard_input_is_read(monkeypatch, tmp_path):
    (tmp_path / "text").write_text("from a file")
    with (tmp_path / "text").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert read_prompt("hi", None) == "hi\n\nfrom a file"


@pytest.mark.parametrize("kind", ["terminal", "null", "closed"])
def test_other_standard_inputs_are_not_waited_for(monkeypatch, opened, kind):
    terminal, other = pty.openpty()
    null = opened(os.open(os.devnull, os.O_RDONLY))
    monkeypatch.setattr(sys, "stdin", {"terminal": opened(other), "null": null, "closed": None}[kind])
    assert read_prompt("hi", None) == "hi"
    os.close(terminal)


def test_a_pipe_that_stays_empty_is_announced(monkeypatch, opened, capsys):
    reader, writer = os.pipe()
    monkeypatch.setattr(sys, "stdin", opened(reader))
    monkeypatch.setattr(prompts, "PATIENCE", 0.01)
    threading.Timer(0.3, os.close, [writer]).start()
    assert read_prompt("hi", None) == "hi"
    assert "waiting for standard input" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "file", "data", "says"),
    [
        (None, None, b" \n", "the prompt is empty"),
        ("hi", "x.txt", b"", "not both"),
        ("hi", None, b"\xff", "standard input is not UTF-8 text"),
        (None, "none.txt", b"", "cannot read none.txt"),
    ],
)
def test_what_cannot_be_a_prompt(piped, argument, file, data, says):
    piped(data)
    with pytest.raises(ValueError, match=says):
        read_prompt(argument, file and Path(file))


def test_a_system_prompt_comes_first():
    assert as_conversation("hi", None) == "hi"
    assert [turn["role"] for turn in as_conversation("hi", "Be brief.")] == ["system", "user"]
