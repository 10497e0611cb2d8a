"""`--engine` on generate: a peer's text, its plain decoding beside it, and what it refuses."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import letters_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(letters_folder.write(tmp_path_factory.mktemp("letters")))


def test_a_peer_generates_and_is_compared_with_itself(folder, slipstream):
    words = ["-m", folder, "--engine", "transformers", "--raw", "--depth", "3", "--max-tokens", "12"]
    report = slipstream("generate", "abcabcabc", *words, "--compare", "--json").report
    assert report["engine"].startswith("transformers ")
    assert report["completion_tokens"] <= 12
    assert report["drafted"] > 0
    assert report["identical"] is True
    assert report["plain_tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "magic"], "there is no engine called 'magic'; one of llamacpp, native, transformers, vllm"),
        (["--engine", "transformers", "--verify", "block"], "a verification rule of its own"),
        (["--engine", "transformers", "-d", "medusa"], "it offers none, ngram, draft_model, early_exit"),
        (["--engine", "transformers", "-o", "colour=red"], "has no option 'colour'; it takes model, exit"),
        (["--engine", "transformers", "-o", "exit=99"], "exit is 99"),
        (["--engine", "transformers", "--invariant"], "no invariant mode"),
        (["--engine", "transformers", "--prediction", __file__], "transformers does not offer prediction here"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(folder, slipstream, words, said):
    done = slipstream("generate", "abc", "-m", folder, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_an_engine_that_is_not_installed_names_the_line_that_installs_it(folder, slipstream):
    done = slipstream("generate", "abc", "-m", folder, "--engine", "vllm")
    assert done.returncode == 2
    assert "pip install 'slipstream-lm[vllm]'" in done.stderr
