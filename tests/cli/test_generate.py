"""`generate` as a user runs it, on the default model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from slipstream.audit import prompts

pytestmark = pytest.mark.model
# a shell that started this in the background may have had interrupts ignored, which processes inherit
START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import slipstream.__main__"


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch):
    """Comparisons on this model end after two pairs of runs; tests/cli/test_verb.py runs five on a tiny model."""
    monkeypatch.setattr("slipstream.cli.generate.pairs.MIN_PAIRS", 2)


@pytest.fixture
def report(slipstream):
    def run(*words: str, stdin: bytes = b""):
        return slipstream("generate", *words, "--json", stdin=stdin).report

    return run


def test_compare_says_how_much_faster_and_whether_the_tokens_agree(report):
    words = ("--compare", "--depth", "2", "--max-tokens", "10")
    found = report("Repeat: red green blue red green blue red green", *words)
    assert found.keys() >= {"text", "token_ids", "tau", "acceptance", "tokens_per_second"}
    assert found["identical"] is True
    assert (found["flipped_ties"], found["real_difference"], found["differences"]) == (0, False, [])
    assert found["ratio_low"] <= found["ratio"] <= found["ratio_high"], "all three are rounded"
    assert found["gain"] is (None if found["ratio_low"] <= 1 <= found["ratio_high"] else found["ratio"] > 1)
    assert found["pairs"] >= 2
    assert found["plain_tokens_per_second"] > 0
    assert found["completion_tokens"] == len(found["token_ids"]) <= 10
    assert "Q4_1" in found["model"]


def test_compare_shouts_where_speculation_is_wrong(slipstream, monkeypatch):
    """A rule that keeps whatever was drafted: the first token it gets wrong is named, and the exit code is 1."""
    monkeypatch.setattr(
        "slipstream.core.tree.Tree.follow",
        lambda tree, choice, token: [[node for node in line if node >= 0] for line in tree.chain.tolist()],
    )
    words = ("generate", "Repeat: red green blue red green", "--compare", "--depth", "4", "--max-tokens", "7")
    done = slipstream(*words)
    assert done.returncode == 1, done.stderr
    assert "WRONG at token" in done.stderr
    found = json.loads(slipstream(*words, "--json").stdout.splitlines()[-1])
    assert found["real_difference"] is True
    assert found["differences"][-1]["gap"] > 100 * found["differences"][-1]["numerics"]


def test_a_draft_model_made_of_the_first_layers(report):
    words = ("Count to ten.", "-d", "draft_model", "-o", "layers=0-9", "--depth", "2", "--max-tokens", "5", "--compare")
    found = report(*words)
    assert found["drafted"] >= 2
    assert found["identical"] is True
    assert found["draft_tokens_per_second"] > 0


def test_a_tree_is_drafted_and_drawn(slipstream, report):
    words = ["Repeat: a b c. a b d. a b", "--tree", "8", "--show-tree", "--max-tokens", "12"]
    nodes = report(*words)["tree"]
    assert nodes[-1]["kind"] in ("bonus", "recovered")
    assert all(-1 <= node["parent"] < i for i, node in enumerate(nodes))
    path = [node for node in nodes if node["kind"] == "accepted"]
    assert [node["parent"] for node in path] == [-1, *(nodes.index(node) for node in path[:-1])]
    assert report(*words, "-d", "none")["text"] == report(*words)["text"], "greedy trees change nothing"
    shown = slipstream("generate", *words).stderr
    assert "the step that went furthest" in shown
    assert "├── " in shown


def test_invariant_mode_is_named(report):
    assert "invariant" in report("Hello", "--invariant", "--max-tokens", "4")["model"]


def test_the_target_drafting_for_itself_is_always_accepted(report):
    found = report(
        "Name a colour.", "-d", "draft_model", "-o", "model=smollm2-135m", "--depth", "3", "--max-tokens", "9"
    )
    assert found["wasted"] == 0
    assert found["tau"] > 2


def test_coupled_sampling_is_the_same_with_speculation_off(report):
    words = ("Tell me a story.", "--verify", "coupled", "--temperature", "1", "--seed", "5", "--max-tokens")
    assert report(*words, "6", "--compare")["identical"] is True
    words = (*words, "16")
    assert report(*words)["text"] == report(*words, "-d", "none")["text"]


def test_a_seed_chooses_the_rule_that_repeats_and_the_output_says_so(slipstream, report):
    words = ("Tell me a story.", "--temperature", "1", "--seed", "5", "--max-tokens", "12")
    first, tree, block = report(*words), report(*words, "--tree", "4"), report(*words, "--verify", "block")
    assert (first["rule"], first["lossless"], first["repeatable"]) == ("coupled", True, "bit for bit")
    assert (tree["rule"], tree["text"]) == ("coupled", first["text"])
    assert (block["rule"], block["lossless"], block["repeatable"]) == ("block", True, None)
    assert "rule coupled, lossless, repeatable bit for bit" in slipstream("generate", *words).stderr
    assert report(*words[:3], "--max-tokens", "2")["rule"] == "block"


def test_a_prompt_from_standard_input_and_from_a_file(report, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("What is the capital of France?")
    from_file = report("--file", str(path), "--max-tokens", "10")
    assert "Paris" in from_file["text"]
    assert report("--max-tokens", "10", stdin=path.read_bytes())["text"] == from_file["text"]


def test_raw_prompts_skip_the_chat_template(report):
    assert "Paris" in report("The capital of France is", "--raw", "--max-tokens", "3")["text"]


@pytest.mark.parametrize("limit", [0, 1])
def test_tiny_limits(report, limit):
    found = report("Hello", "--max-tokens", str(limit))
    assert found["completion_tokens"] == limit
    assert found["finish_reason"] == "length"


def test_the_text_alone_goes_to_stdout_and_statistics_to_stderr(slipstream, report):
    done = slipstream("generate", "Hello", "--max-tokens", "4")
    assert done.returncode == 0
    assert done.stdout == report("Hello", "--max-tokens", "4")["text"] + "\n"
    assert "tau" in done.stderr
    assert "\x1b" not in done.stderr


def test_interrupting_keeps_the_text_so_far():
    words = [
        sys.executable,
        "-c",
        START,
        "generate",
        "Write a very long story.",
        "--max-tokens",
        "4000",
        "--temperature",
        "1",
        "--seed",
        "1",
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1)  # the first character is there
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"cancelled" in errors
    assert b"Traceback" not in errors
    assert b"cancelled" not in rest


@pytest.mark.parametrize(
    ("words", "stdin", "says"),
    [
        (["hi", "-m", "no-such-model"], b"", "no model called"),
        (["hi", "-d", "no-such-drafter"], b"", "no drafter called"),
        (["hi", "--verify", "blok"], b"", "did you mean block"),
        (["hi", "--depth", "-2"], b"", "depth is -2"),
        (["hi", "--temperature", "-1"], b"", "temperature is -1"),
        (["hi", "--top-p", "1.5"], b"", "top_p"),
        (["hi", "--max-tokens", "-1"], b"", "max_tokens"),
        (["hi", "-o", "nonsense"], b"", "key=value"),
        (["hi", "-o", "size=3"], b"", "it takes longest, shortest"),
        (["hi", "-d", "draft_model", "-o", "layers=90"], b"", "layers 0 to 29"),
        (["hi", "--verify", "greedy", "--temperature", "1"], b"", "temperature 0"),
        (["hi", "--tree", "-1,1"], b"", "so that there is no cycle"),
        (["hi", "--tree", "bush"], b"", "write 24 (nodes)"),
        (["hi", "--tree", "9000"], b"", "the model's context holds 8192"),
        (["hi", "--tree", "50000x1", "-e", "transformers"], b"", "need the native engine"),
        (["hi", "--tree", "6", "--verify", "block", "--temperature", "1"], b"", "the rule block verifies chains"),
        (["hi", "--tree", "6", "--verify", "spectr", "--temperature", "1"], b"", "takes no tree of this drafter's"),
        (["hi", "--file", "x.txt"], b"", "not both"),
        (["hi", "--prediction", "no-such.txt"], b"", "cannot read no-such.txt: No such file or directory"),
        (["hi", "--prediction", "/bin/sh"], b"", "/bin/sh is not UTF-8 text"),
        ([], b"", "prompt is empty"),
        ([], b"\xff\xfe\x00", "not UTF-8"),
        (["word " * 9000], b"", "context holds 8192"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(slipstream, words, stdin, says):
    done = slipstream("generate", *words, stdin=stdin)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_folder_without_weights_is_refused(slipstream, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    done = slipstream("generate", "hi", "-m", str(tmp_path))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_audit_of_a_real_pair(slipstream, monkeypatch):
    """One prompt, on which n-grams are drafted; the command of the README takes them all."""
    monkeypatch.setattr(prompts, "PROMPTS", prompts.PROMPTS[-1:])
    found = slipstream("audit", "-m", "smollm2-135m", "-d", "ngram", "--verify", "greedy", "--json").report
    assert found["passed"]
    assert found["checks"][0]["layer"] == "replay"
