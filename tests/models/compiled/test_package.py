"""A model from its package is the model loaded whole, to the bit; what cannot be that is never opened."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import letters
from grids import quantise
from slipstream.cli import main
from slipstream.core.law import OneHot
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Request, Row
from slipstream.drafters.build import build_drafter
from slipstream.engines.base import GenerationOptions
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.kernels.cpu import hash as cpu_hash
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.kernels.cpu.compile import folder as libraries
from slipstream.kernels.cpu.decoder import kernel
from slipstream.models import load_target as building
from slipstream.models.compiled import package, package_file
from slipstream.models.compiled.background import BackgroundTask
from slipstream.models.compiled.skeleton import Skeleton
from slipstream.models.load_target import compile_target
from slipstream.models.sources.catalog import CatalogError, resolve, verify
from slipstream.models.target import Target
from slipstream.models.weights.linears import products
from tiny import VOCAB, build

pytestmark = pytest.mark.skipif(kernel() is None, reason="needs a C++ compiler")
needs_integers = pytest.mark.skipif(not cpu_linear.has_integers(), reason="needs instructions for products of bytes")
WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "bos_token_id": None, "eos_token_id": 0}
ROPE = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS = {
    "llama": WIDE,
    "mistral": WIDE,
    "qwen2": WIDE,
    "qwen3": WIDE | {"head_dim": 16},
    "scaled": WIDE | {"rope_parameters": ROPE | {"original_max_position_embeddings": 64}},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of our own; kernels are compiled once for all."""
    monkeypatch.setattr(package, "home", lambda: tmp_path / "cache" / "packages")


def written(folder: Path, kind: str = "llama", whole: bool = True) -> str:
    """A folder with a tiny model, of weights of few bits or of any, and a tokenizer."""
    model = build("llama" if kind == "scaled" else kind, **KINDS.get(kind, {}))
    (quantise(model) if whole else model).save_pretrained(folder)
    letters.tokenizer().save_pretrained(folder)
    return str(folder)


def packages() -> list[Path]:
    return sorted(package.home().glob("*"))


def scores(target: Target) -> list[torch.Tensor]:
    """What a few cycles of random trees give: logits and features."""
    model, rng, outputs = target.model, random.Random(1), list[torch.Tensor]()
    model.declare([0, 1])
    for _ in range(4):
        rows = [Row(Request([rng.randrange(19) for _ in range(rng.randrange(1, 40))])) for _ in range(3)]
        owner = sorted(rng.randrange(3) for _ in range(7))
        parent = [rng.choice([-1, *(j for j in range(i) if owner[j] == r)]) for i, r in enumerate(owner)]
        token = torch.tensor([rng.randrange(19) for _ in owner])
        model.open(rows)
        both = model.score(rows, Draft(Tree.of(3, owner, parent), token, OneHot(token, model.vocab)))
        outputs += [both.logits, *(both.features[layer] for layer in sorted(both.features))]
        model.close(rows)
    return outputs


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_package_scores_as_the_whole_model_to_the_bit(tmp_path, kind, whole):
    folder = written(tmp_path / "model", kind, whole)
    cold = build_target(folder, package=False)
    assert build_target(folder).model.model.__class__ is cold.model.model.__class__, "too small to be packaged unasked"
    assert compile_target(folder) == packages()[0]
    warm = build_target(folder)
    assert isinstance(warm.model.model, Skeleton)
    assert not isinstance(cold.model.model, Skeleton)
    assert (warm.label, warm.model.vocab, warm.model.context) == (cold.label, cold.model.vocab, cold.model.context)
    assert warm.model.vocab == VOCAB
    assert warm.model.anatomy.windows == cold.model.anatomy.windows
    loose = build_target(folder, invariant=False, context=50)
    assert (loose.model.invariant, loose.model.context, isinstance(loose.model.model, Skeleton)) == (False, 50, True)
    for mine, theirs in zip(scores(warm), scores(cold), strict=True):
        assert torch.equal(mine, theirs)
    ours, whose = (t.model.model.get_output_embeddings().weight for t in (warm, cold))
    assert torch.equal(ours, whose)
    assert torch.equal(*(t.model.model.get_input_embeddings().weight for t in (warm, cold)))


@needs_integers
def test_a_table_that_is_also_the_output_matrix_is_stored_once(tmp_path):
    model = quantise(build("llama", **WIDE, tie_word_embeddings=True))
    model.save_pretrained(tmp_path / "model")
    letters.tokenizer().save_pretrained(tmp_path / "model")
    path = compile_target(str(tmp_path / "model"))
    assert "embedding" not in package_file.read_index(path)["tensors"]
    cold, warm = (build_target(str(tmp_path / "model"), package=package) for package in (False, True))
    for mine, theirs in zip(scores(warm), scores(cold), strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in ((warm.embedding, cold.embedding), (warm.output, cold.output)):
        assert torch.equal(mine, theirs)
    with pytest.raises(IndexError, match=f"not between 0 and {VOCAB - 1}"):
        warm.model.model.get_input_embeddings()(torch.tensor([VOCAB]))


@needs_integers
@pytest.mark.parametrize(
    ("whole", "words"), [(True, "int8 x int4/int8 products"), (False, "rounded to int8, int8 x int8 products")]
)
def test_activations_of_eight_bits_have_a_package_of_their_own(tmp_path, whole, words):
    folder = written(tmp_path / "model", whole=whole)
    assert compile_target(folder) != compile_target(folder, "a8")
    cold, warm = (build_target(folder, "a8", package=package) for package in (False, True))
    assert isinstance(warm.model.model, Skeleton)
    assert warm.label == cold.label == f"{folder} ({words}, invariant)"
    usual = build_target(folder)
    for mine, theirs, others in zip(scores(warm), scores(cold), scores(usual), strict=True):
        assert torch.equal(mine, theirs)
        assert not torch.equal(mine, others)
    drafter: Any = build_drafter("draft_model", warm, {"layers": "0"})
    assert str(products(drafter.model.model)).startswith("int8 x ")


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(1.0, top_p=0.9, seed=5)])
def test_engines_say_the_same(tmp_path, sampling):
    folder = written(tmp_path / "model")
    compile_target(folder)
    said = []
    for use in (True, False):
        target = build_target(folder, package=use)
        assert isinstance(target.model.model, Skeleton) == use
        with NativeEngine(target, "ngram", "coupled") as engine:
            (ticket,) = engine.submit("abcabc", sampling, GenerationOptions(max_tokens=60))
            done = ticket.result()
        said.append((done.token_ids, done.text, done.prompt_tokens))
    assert said[0] == said[1]
    assert len(said[0][0]) > 5


def test_the_text_of_a_package_can_be_sent_to_another_process(tmp_path):
    folder = written(tmp_path / "model")
    compile_target(folder)
    text = build_target(folder, package=True).text
    copy = pickle.loads(pickle.dumps(text))
    assert copy.encode("abcabc") == text.encode("abcabc")
    assert copy.decode([5, 6, 7]) == text.decode([5, 6, 7])
    assert len(copy.huggingface) == len(text.huggingface)


def test_a_model_compares_with_plain_decoding_from_its_package(tmp_path):
    """`compare` wraps the same weights a second time, and a package's cannot be run by modules."""
    from slipstream.engines.native.compare import agreement

    folder = written(tmp_path / "model")
    compile_target(folder)
    with NativeEngine(build_target(folder), "none") as engine:
        request = Request([3, 4, 5], Sampling(temperature=0), 4)
        assert not agreement(engine.target.model, request, [3, 4, 5, 6], [4, 4, 5, 6]).identical


def test_without_dtype_auto_the_modules_are_loaded(tmp_path, monkeypatch, capfd):
    folder = written(tmp_path / "model")
    compile_target(folder)
    monkeypatch.setenv("SLIPSTREAM_DEBUG", "1")
    for dtype in ("float32", "bfloat16"):
        assert not isinstance(build_target(folder, dtype).model.model, Skeleton)
        assert f"package: none wanted (dtype {dtype} on cpu)" in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["gpt2", "olmo2", "gemma2", "granite"])
def test_models_of_another_kind_are_refused_in_a_sentence(tmp_path, kind):
    folder = written(tmp_path / "model", kind, whole=False)
    with pytest.raises(ValueError, match=r"cannot be compiled: its .*; it is loaded whole every time"):
        compile_target(folder)
    assert packages() == []


def test_a_tokenizer_of_another_kind_is_refused(tmp_path, monkeypatch):
    folder = written(tmp_path / "model")
    monkeypatch.setattr("slipstream.models.text.light_tokenizer.LightTokenizer.decode", lambda *_, **__: "another")
    with pytest.raises(ValueError, match="its tokenizer needs more than the tokenizers library"):
        compile_target(folder)


def test_a_first_use_writes_the_package_and_the_next_one_opens_it(tmp_path, monkeypatch, capfd):
    folder = written(tmp_path / "model")
    monkeypatch.setattr(building, "WORTH", 0)
    chores: list[BackgroundTask] = []
    monkeypatch.setattr(building, "BackgroundTask", lambda work: chores.append(BackgroundTask(work, pause=1000)))
    monkeypatch.setenv("SLIPSTREAM_DEBUG", "1")
    assert not isinstance(build_target(folder).model.model, Skeleton)
    assert packages() == [], "nothing is written before the answer"
    assert "package: none yet" in capfd.readouterr().err
    chores[0].run()
    (path,) = packages()
    assert f"package: written, 0 MB ({path})" in capfd.readouterr().err
    assert isinstance(build_target(folder).model.model, Skeleton)
    assert f"package: {path}" in capfd.readouterr().err
    assert len(chores) == 1


def test_a_short_process_writes_the_package_at_its_end(tmp_path):
    """While the interpreter shuts down no thread can be started."""
    folder = written(tmp_path / "model")
    code = (
        "from pathlib import Path\nfrom slipstream.models import load_target as build\n"
        "from slipstream.models.compiled import package\n"
        f"build.WORTH = 0; package.home = lambda: Path({str(package.home())!r})\nbuild.load_target({folder!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert isinstance(build_target(folder).model.model, Skeleton)


def test_what_may_wait_is_done_once_and_at_the_latest_at_the_end():
    done: list[int] = []
    later = BackgroundTask(lambda: done.append(1), pause=1000)
    later.run()
    later.run()
    assert done == [1]
    code = (
        "from slipstream.models.compiled.background import BackgroundTask; "
        "BackgroundTask(lambda: print('done'), 1000); print('answer')"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown.split() == ["answer", "done"]


@pytest.mark.parametrize("harm", ["flip", "flip the end", "flip the index", "swap", "cut", "empty", "nonsense"])
def test_a_damaged_package_is_not_opened_and_made_anew(tmp_path, monkeypatch, capfd, harm):
    folder = written(tmp_path / "model")
    path = compile_target(folder)
    data = bytearray(path.read_bytes())
    (check,) = package.check_integrity(Path(folder))
    assert (check.name, check.bytes, check.problem) == (path.name, len(data), None)
    if harm.startswith("flip"):
        places = {"flip": len(data) // 3, "flip the end": -30, "flip the index": data.rindex(folder.encode())}
        data[places[harm]] ^= 1
    if harm == "swap":  # the sum of all words stays what it was
        half = package_file.read_index(path)["bytes"] // 128 * 64
        data[:half], data[half : 2 * half] = data[half : 2 * half], data[:half]
    path.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "nonsense": b"x" * 5000}.get(harm, data))
    assert [check.name for check in verify(folder) if check.problem] == [path.name]
    monkeypatch.setenv("SLIPSTREAM_DEBUG", "1")
    monkeypatch.setattr(building, "WORTH", 0)
    monkeypatch.setattr(building, "BackgroundTask", lambda work: work())
    target = build_target(folder)
    assert not isinstance(target.model.model, Skeleton)
    assert "package: not usable" in capfd.readouterr().err
    assert isinstance(build_target(folder).model.model, Skeleton), "it was written again"


def test_a_package_of_another_version_is_neither_opened_nor_called_damaged(tmp_path):
    folder = written(tmp_path / "model")
    path = compile_target(folder)
    path.write_bytes(path.read_bytes()[:-20] + b"slipstream 1")
    assert package.check_integrity(Path(folder)) == []
    assert not isinstance(build_target(folder).model.model, Skeleton)


@pytest.mark.parametrize(("error", "seen"), [(KeyboardInterrupt, KeyboardInterrupt), (OSError, CatalogError)])
def test_a_build_that_is_cut_short_leaves_nothing(tmp_path, monkeypatch, error, seen):
    folder = written(tmp_path / "model")

    def interrupted(kernel: cpu_hash.HashKernel, data: torch.Tensor) -> int:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(cpu_hash.HashKernel, "hash_blocks", interrupted)
        with pytest.raises(seen):
            compile_target(folder)
    assert packages() == []
    assert not isinstance(build_target(folder).model.model, Skeleton)
    compile_target(folder)
    assert isinstance(build_target(folder).model.model, Skeleton)


def test_another_model_code_or_library_is_another_package(tmp_path, monkeypatch):
    folder = written(tmp_path / "model")
    first = compile_target(folder)
    with monkeypatch.context() as patch:
        patch.setattr(package, "version", lambda name: "99")
        assert package.place(resolve(folder)) != first
    with monkeypatch.context() as patch:
        patch.setattr(package, "_sources", lambda: "changed")
        assert package.place(resolve(folder)) != first
    assert package.place(resolve(folder)) == first
    written(tmp_path / "model", "qwen2")
    second = package.place(resolve(folder))
    assert second != first
    assert not isinstance(build_target(folder).model.model, Skeleton)
    compile_target(folder)
    assert packages() == sorted([first, second])
    os.utime(first, (0, 0))
    written(tmp_path / "model", "mistral")
    third = compile_target(folder)
    assert packages() == sorted([second, third]), "what was used longest ago is dropped"
    package.forget(Path(folder))
    assert packages() == []


def test_a_packaged_start_imports_neither_transformers_nor_what_else_it_can_do_without(tmp_path, capfd):
    folder = written(tmp_path / "model")
    with pytest.raises(SystemExit) as end:
        main(["models", "compile", folder])
    assert not end.value.code
    assert f"{folder} is compiled: 0 MB in {packages()[0]}" in capfd.readouterr().out
    code = (
        "import sys\nfrom slipstream.cli import main\n"
        f"words = ['generate', 'abc', '-m', {folder!r}, '--max-tokens', '8', '--json']\n"
        "try:\n    main(words)\nexcept SystemExit:\n    pass\n"
        "late = {'transformers', 'torch._decomp', 'pydantic'} & {*sys.modules}\n"
        "assert not late, f'{late} were imported'\n"
    )
    (tmp_path / "cache" / "kernels").symlink_to(libraries())
    env = {**os.environ, "SLIPSTREAM_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    with NativeEngine(build_target(folder, package=False), "none") as engine:
        (plain,) = engine.generate("abc", Sampling(temperature=0), max_tokens=8)
    assert json.loads(done.stdout.splitlines()[-1])["text"] == plain.text


@pytest.mark.model
def test_the_default_model_is_the_same_from_its_package():
    cold = build_target("smollm2-135m", package=False)
    package.write_package(cold.files, cold.model, cold.text)
    warm = build_target("smollm2-135m")
    assert isinstance(warm.model.model, Skeleton)
    assert warm.label == cold.label
    for mine, theirs in zip(scores(warm), scores(cold), strict=True):
        assert torch.equal(mine, theirs)
    said = []
    for target in (warm, cold):
        with NativeEngine(target, "eagle", "coupled", depth=3) as engine:
            out = engine.generate(["Say hello", "What is 2 + 2?"], Sampling(1.0, seed=3), max_tokens=8)
        said.append([done.token_ids for done in out])
    assert said[0] == said[1]
