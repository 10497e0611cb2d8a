"""Every command and every snippet of the README and of the tutorial runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = README + (ROOT / "docs" / "tutorial.md").read_text()
COMMANDS = [
    tuple(shlex.split(line, comments=True))
    for block in re.findall(r"```sh\n(.*?)```", PAGES, re.S)
    for line in block.splitlines()
    if line.startswith("slipstream")
]
OWN_MODELS = re.findall(r"\| `(-m .*?)` \|", README)
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGES, re.S)
LESS = {"audit": ["--samples", "200"], "generate": ["--max-tokens", "12"]}  # the same command, less of it
WHOLE = [("audit",), ("audit", "--self-test")]  # run by tests/cli/test_audit.py, which also reads what they found
DISTINCT = dict.fromkeys(words[1:] for words in COMMANDS if words[1:] not in WHOLE and words[1] != "serve")
# an audit of the default model takes longer than all other commands; tests/cli/test_generate.py has a shorter one
RUNS = [pytest.param(words, marks=pytest.mark.slow if words[0] == "audit" else ()) for words in DISTINCT]


def test_there_is_something_to_run():
    assert len(COMMANDS) >= 6
    assert SNIPPETS
    assert OWN_MODELS
    assert all(("slipstream", *words) in COMMANDS for words in WHOLE)
    assert README.index("make demo") < README.index("make test") < README.index("slipstream generate")


@pytest.mark.model
@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_every_command_runs(slipstream, words, monkeypatch):
    monkeypatch.setattr("slipstream.cli.generate.pairs.MIN_PAIRS", 2)
    done = slipstream(*words, *LESS.get(words[0], []), stdin=b"hello\n/stats\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_servers_run_in_a_test_of_their_own():
    """tests/serve/test_command.py starts this command and asks the server."""
    assert [words[1:] for words in COMMANDS if words[1] == "serve"] == [("serve", "-d", "eagle")]


@pytest.mark.model
@pytest.mark.parametrize("line", OWN_MODELS)
def test_commands_for_own_models_have_legal_flags(slipstream, line):
    """With the default model in place of those that a user has."""
    words = ["generate", "Say hello.", *shlex.split(line)]
    for flag, name in (("-m", "smollm2-135m"), ("-d", "ngram")):
        words[words.index(flag) + 1] = name
    done = slipstream(*words, "--max-tokens", "4")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.model
@pytest.mark.parametrize("code", SNIPPETS)
@pytest.mark.usefixtures("slipstream")  # which loads the default model once
def test_every_snippet_runs(code, capfd):
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})
    assert capfd.readouterr().out.strip()


def test_tables_of_the_readme_fit_a_phone():
    """A phone shows about 45 characters of a table; links and code wrap."""
    rows = [line for line in README.splitlines() if line.startswith("|")]
    assert rows
    for row in rows:
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", row)
        assert row.count("|") <= 6, row
        assert len(shown) <= 115, row


def test_every_row_of_figures_links_to_its_source():
    """Machine, build and command are one click away."""
    table = README[README.index("## Speed") :]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert rows
    assert all(re.match(r"\| \[[^\]]+\]\(docs/[a-z-]+\.md#[^)]+\) \|", row) for row in rows)


def test_batches_are_padded_on_the_left():
    """Decoder-only models continue after the last column of a batch; transformers warns about padding there."""
    tokenizers = re.findall(r"AutoTokenizer\.from_pretrained\((.*)\)", PAGES)
    assert tokenizers
    assert all('padding_side="left"' in arguments for arguments in tokenizers)


@pytest.mark.parametrize("target", ["demo", "test", "check"])
def test_the_makefile_has_what_the_readme_says(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
