"""`--engine` on generate: a peer's text, its plain decoding beside it, and what it refuses."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

import letters_folder
from slipstream.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(letters_folder.write(tmp_path_factory.mktemp("letters")))


def test_a_peer_generates_and_is_compared_with_itself(folder, capsys):
    words = ["-m", folder, "--engine", "transformers", "--raw", "--depth", "3", "--max-tokens", "12"]
    with pytest.raises(SystemExit) as ended:
        main(["generate", "abcabcabc", *words, "--compare", "--json"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not ended.value.code
    assert report["engine"].startswith("transformers ")
    assert report["tokens"] <= 12
    assert report["drafted"] > 0
    assert report["identical"] is True
    assert report["plain_tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "magic"], "there is no engine called 'magic'; one of llamacpp, native, transformers, vllm"),
        (["--engine", "transformers", "--verify", "block"], "a verification rule of its own"),
        (["--engine", "transformers", "-d", "suffix"], "it offers none, ngram, draft_model, early_exit"),
        (["--engine", "transformers", "-o", "colour=red"], "has no option 'colour'; it takes model, exit"),
        (["--engine", "transformers", "-o", "exit=99"], "exit is 99"),
        (["--engine", "transformers", "--invariant"], "no invariant mode"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(folder, words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["generate", "abc", "-m", folder, *words])
    shown = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in shown
    assert len(shown.strip().splitlines()) == 1


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_an_engine_that_is_not_installed_names_the_line_that_installs_it(folder, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["generate", "abc", "-m", folder, "--engine", "vllm"])
    assert ended.value.code == 2
    assert "pip install 'slipstream-lm[vllm]'" in capsys.readouterr().err
