"""`generate` on a model of sixteen letters: streams, exit codes, and everything an engine can be asked for."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import letters
import letters_folder
from slipstream import cli
from slipstream.cli.generate import session

CLI = Path(cli.__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(letters_folder.write(tmp_path_factory.mktemp("letters")))


@pytest.fixture
def generate(slipstream, folder):
    def run(*words: str, prompt: str = "abcabcabc", stdin: bytes = b""):
        return slipstream("generate", prompt, "-m", folder, "--max-tokens", "12", *words, stdin=stdin)

    return run


def test_the_version(slipstream):
    assert slipstream("--version").stdout == "slipstream 0.1.0\n"


def test_help_does_not_load_torch():
    code = "import sys, slipstream.cli.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_help_names_every_drafter_and_every_rule(slipstream):
    from slipstream.core.rules import rules
    from slipstream.drafters import drafters

    shown = " ".join(slipstream("generate", "--help").stdout.split())
    assert ", ".join(drafters.names()) in shown
    assert ", ".join(rules.names()) in shown


def test_an_error_does_not_list_what_is_refused(generate):
    from slipstream.drafters import drafters

    for name in ("table", "nothing"):
        done = generate("-d", name)
        assert done.returncode == 2
        assert f"one of {', '.join(drafters.names())}" in done.stderr
    assert "table" not in drafters.names()


def test_stdout_is_the_text_byte_for_byte(generate):
    plain = generate()
    report = generate("--json").report
    assert plain.stdout == report["text"] + "\n"
    assert "tau" in plain.stderr
    assert report["rule"] == "greedy"
    assert report["lossless"] is True
    assert len(report["token_ids"]) == report["completion_tokens"]
    assert report["finish_reason"] in ("stop", "length")


def test_a_piped_text_follows_the_prompt(generate):
    joined = generate("--json", "--raw", prompt="abc", stdin=b"def").report
    assert joined["prompt_tokens"] > generate("--json", "--raw", prompt="abc").report["prompt_tokens"]


def test_samples_stand_side_by_side(generate):
    words = ("-n", "3", "--temperature", "1", "--seed", "4", "--min-tokens", "4")
    report = generate(*words, "--json").report
    texts = [choice["text"] for choice in report["choices"]]
    assert len(set(texts)) > 1
    assert [choice["index"] for choice in report["choices"]] == [0, 1, 2]
    assert report["completion_tokens"] == sum(choice["completion_tokens"] for choice in report["choices"])
    done = generate(*words)
    assert done.stdout.splitlines() == texts
    assert "sample 3 of 3" in done.stderr


def test_logprobs_in_json_and_as_a_table(generate):
    content = generate("--logprobs", "2", "--json").report["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert all(entry["logprob"] <= 0 for entry in content)
    done = generate("--logprobs", "2")
    assert "logprob" in done.stderr
    assert repr(content[0]["token"]) in done.stderr


def test_biases_penalties_and_ends(generate):
    assert set(generate("--logit-bias", "g=1000", "--json").report["text"]) == {"g"}
    assert set(generate("--logit-bias", "9=1000", "--json").report["text"]) == {"g"}
    assert generate("--logit-bias", "g=1000", "--stop-token-ids", "9", "--json").report["token_ids"] == [9]
    assert generate("--logit-bias", "0=1000", "--json").report["finish_reason"] == "stop"
    assert generate("--logit-bias", "0=1000", "--ignore-eos", "--json").report["completion_tokens"] == 12
    assert generate("--logit-bias", "0=1000", "--min-tokens", "5", "--json").report["completion_tokens"] == 6
    repeated = ("--logit-bias", "g=50", "--logit-bias", "h=45", "--json")
    assert set(generate(*repeated, "--frequency-penalty", "20").report["text"]) > {"g"}
    assert set(generate(*repeated, "--presence-penalty", "20").report["text"]) > {"g"}
    assert set(generate(*repeated, "--repetition-penalty", "5").report["text"]) > {"g"}


def test_a_system_prompt_is_part_of_the_conversation(generate):
    longer = generate("--system", "abcdef", "--json").report["prompt_tokens"]
    assert longer > generate("--json").report["prompt_tokens"]


def test_grammars(generate, tmp_path):
    pytest.importorskip("xgrammar")
    assert set(generate("--regex", "[ab]+", "--json").report["text"]) <= set("ab")
    source = 'root ::= "c" root | "c"'
    (tmp_path / "c.ebnf").write_text(source)
    for given in (source, str(tmp_path / "c.ebnf")):
        assert set(generate("--grammar", given, "--json").report["text"]) == {"c"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--json-schema", "{", "--json"], "is not JSON"),
        (["--json-schema", "none.json"], "neither a grammar nor a readable file"),
        (["--grammar", "none.ebnf"], "neither a grammar nor a readable file"),
        (["--regex", "a", "--grammar", "root ::= 'a'"], "--regex and --grammar are given"),
        (["--logit-bias", "abc"], "not of the form TOKEN=VALUE"),
        (["--logit-bias", "=3"], "not of the form TOKEN=VALUE"),
        (["--logit-bias", "abc=3"], "is 3 tokens"),
        (["--logit-bias", "99=3"], "99"),
        (["-n", "0"], "n is 0"),
        (["--logprobs", "101"], "logprobs is 101"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0"),
        (["--system", "a", "--raw"], "raw is on"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_sentence(generate, words, says):
    done = generate(*words)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_bytes_that_are_no_text(folder):
    words = [sys.executable, "-m", "slipstream", "generate", b"\xff", "-m", folder]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stderr == r"error: the argument b'\xff' is not UTF-8 text" + "\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("words", [["--version"], ["models", "list"]])
def test_a_full_disk_is_one_sentence(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "slipstream", *words], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
    assert done.returncode == 2
    assert done.stderr.decode() == "error: cannot write: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_text_for_a_full_disk_is_one_sentence(folder, monkeypatch, capfd):
    full = open("/dev/full", "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main(["generate", "abc", "-m", folder, "--max-tokens", "4"])
    with suppress(OSError):  # the text is still in its buffer
        full.close()
    assert end.value.code == 2
    assert capfd.readouterr().err == "error: cannot write: No space left on device\n"


@pytest.mark.parametrize("verb", [["generate", "abc", "-m"], ["chat", "-m"], ["models", "inspect"]])
def test_square_brackets_in_a_path(slipstream, tmp_path, verb):
    folder = letters_folder.write(tmp_path / "[" / "bold]")
    done = slipstream(*verb, str(folder), stdin=b"abc\n")
    assert done.returncode == 0, done.stderr
    missing = slipstream(*verb, str(tmp_path / "[" / "red]"), stdin=b"abc\n")
    assert missing.returncode == 2
    assert "[/red]" in missing.stderr


def test_nothing_is_printed_as_markup():
    """Consoles of the command line read no markup, so that tags would be printed as they stand."""
    tags = re.compile(r"\[(/|(bold |dim )?(dim|bold|red|green|yellow|cyan))\]")
    assert [path.name for path in CLI.rglob("*.py") if tags.search(path.read_text())] == []


@pytest.mark.parametrize("words", [["--compare"], ["--compare", "-d", "none"], ["--compare", "--max-tokens", "0"]])
def test_nothing_drafted_is_no_difference(generate, words):
    report = generate("--depth", "0", *words, "--json").report
    assert report["gain"] is None
    assert report["ratio"] is None
    assert "no difference to measure" in report["note"]
    assert "no difference to measure" in generate("--depth", "0", *words).stderr


def test_a_comparison_has_an_interval(generate):
    report = generate("--depth", "2", "--compare", "--json").report
    assert report["ratio_low"] <= report["ratio"] <= report["ratio_high"]
    assert report["pairs"] >= 5
    shown = generate("--depth", "2", "--compare").stderr
    assert "(95 % " in shown
    assert "same tokens as plain decoding" in shown


@pytest.mark.parametrize("at", [1, 2, 5])
def test_ctrl_c_ends_the_comparison(generate, monkeypatch, at):
    """In the run that is shown, in the plain run after it, and in one of the pairs."""
    from slipstream.cli.generation import Listener

    calls, listen = [], Listener.listen

    def interrupted(self, show=None):
        calls.append(self)
        if len(calls) == at:
            raise KeyboardInterrupt
        listen(self, show)

    monkeypatch.setattr(Listener, "listen", interrupted)
    done = generate("--depth", "2", "--compare")
    assert done.returncode == 130
    assert len(calls) == at
    assert "ended by Ctrl-C" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_note_says_in_words_why_nothing_is_drafted(generate, monkeypatch):
    monkeypatch.setattr(session, "why_undrafted", lambda *_: "nothing was drafted: dear")
    assert generate("--json").report["drafting_note"] == "nothing was drafted: dear"
    assert "nothing was drafted: dear" in generate().stderr


def test_an_engine_that_drafts_for_all_requests_is_compared_after_it_is_closed():
    """Its two runs cannot take turns, and the report says so."""
    from slipstream.cli.generate.comparison import compare_apart
    from slipstream.cli.generation import GenerationTask, run_task
    from slipstream.core.sampling import Sampling
    from slipstream.engines.base import GenerationOptions
    from slipstream.engines.native.engine import NativeEngine

    task = GenerationTask("abcabcabc", Sampling(temperature=0), GenerationOptions(max_tokens=12, ignore_eos=True))
    fast = NativeEngine(letters.target(), "ngram", depth=2)
    run = run_task(fast, task)
    plain = NativeEngine(letters.target(), "none")
    report = compare_apart(fast, lambda: plain, task, run, lambda done, least: None)
    assert report["pairs"] == 5
    assert report["identical"] is True
    assert report["ratio_low"] <= report["ratio"] <= report["ratio_high"]
    assert "did not take turns" in report["note"]
    for engine in (fast, plain):
        with pytest.raises(ValueError, match="closed"):
            engine.submit("abc")


def test_json_is_the_only_line_of_stdout(generate):
    """The text, which may hold line breaks, stands in the object and nowhere else."""
    done = generate("--json", "--logit-bias", "g=1000")
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert report["text"] == "g" * 12
    assert report["finish_reason"] == "length"
    assert report["completion_tokens"] == len(report["token_ids"]) == 12
    assert report["prompt_tokens"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="the library is loaded ahead on Linux only")
def test_torch_is_loaded_ahead_for_commands_that_run_a_model():
    code = """if True:
        import sys
        from slipstream.cli.preload import preload_torch
        print(preload_torch("models"))
        preload_torch("generate").join()
        print("torch" in sys.modules, "libtorch_cpu.so" in open("/proc/self/maps").read())
        import torch
        print(int(torch.arange(3).sum()), preload_torch("generate"))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "False", "True", "3", "None"]


@pytest.mark.skipif(sys.platform != "linux", reason="the library is loaded ahead on Linux only")
def test_a_process_that_ends_early_waits_for_the_library():
    code = "from slipstream.cli.preload import preload_torch; preload_torch('generate'); raise SystemExit(2)"
    assert {subprocess.run([sys.executable, "-c", code], check=False).returncode for _ in range(3)} == {2}


def test_a_command_imports_no_other_command():
    code = "import sys; from slipstream.cli.commands import build_app; build_app('generate'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "slipstream.cli.generate.command" in done.stdout
    assert "slipstream.cli.audit.command" not in done.stdout
