"""A training that goes on from a trained drafter: same numbers, same tokens, and nothing that does not fit."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

import letters
from slipstream.drafters.eagle.folder import load_head
from slipstream.drafters.files import folder as stored
from slipstream.drafters.files.draft_folder import load_draft
from slipstream.drafters.files.shipped import shipped
from slipstream.models.sources.load import ModelFiles
from slipstream.train.corpus import SampleBatch, read
from slipstream.train.method import methods
from slipstream.train.methods.eagle import EagleMethod
from slipstream.train.options import EagleTrainOptions
from slipstream.train.run import train
from slipstream.train.teacher import Teacher
from slipstream.train.warm_start import find_trained

SMALL = {"steps": 6, "tokens": 512, "rate": 0.01, "vocab": 9, "answer": 12, "prompt": 32, "rows": 64}
SIZES = {
    "eagle": {"features": "0,1", "intermediate": 40},
    "draft_model": {"layers": "1"},
    "medusa": {"heads": 3, "blocks": 1},
    "mlp": {"features": "0,1", "inner": 40},
    "prophet": {"window": 5, "intermediate": 40},
    "dflash": {"layers": 1, "block": 4, "kv_heads": 4, "intermediate": 40},
}
HEADS = ["medusa", "mlp", "prophet", "dflash"]
ODD = torch.arange(0, 18, 2)  # tokens no count of words would choose


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("letters")
    letters.plain().save_pretrained(path)
    letters.tokenizer().save_pretrained(path)
    rng = random.Random(1)
    words = ["".join(rng.choice(letters.LETTERS) for _ in range(rng.randrange(3, 12))) for _ in range(120)]
    (path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": word}) for word in words))
    return path


@pytest.fixture(scope="module")
def begun(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained folder of each method. What a training would find out by itself is then exchanged for something odd:
    the draft vocabulary, and how large the target's states are said to be."""
    folders = {}
    for method, more in SIZES.items():
        folders[method] = tmp_path_factory.mktemp(method)
        run(method, target, folders[method], **more)
        odd = {"scale": torch.tensor([0.3, 0.9])} if method == "eagle" else {}
        rewrite(folders[method], folders[method], method, ids=ODD, weights=odd)
    return folders


def rewrite(folder: Path, out: Path, method: str, precision: str = "int8", ids=None, weights=None, **change) -> Path:
    """The same drafter with something changed."""
    config, tensors, known = stored.read(folder, method)
    stored.write(out, method, tensors | (weights or {}), known if ids is None else ids, precision, config | change)
    return out


def run(method: str, target: Path, out: Path, *, on_progress=lambda *_: None, **more):
    options = {**SMALL, **more}
    if "start" in options and "vocab" not in more:
        del options["vocab"]
    train(method, str(target), [target / "prompts.jsonl"], out, options, device="cpu", on_progress=on_progress)


def first_batch(out: Path) -> SampleBatch:
    corpus = read(sorted((out / "work/answers").glob("*.safetensors")), [])
    return corpus.batch(next(corpus.batches(SMALL["tokens"], 0)))


def loss_of(method: str, folder: Path, batch: SampleBatch) -> float:
    """What a folder's drafter, loaded as for drafting, has for a loss."""
    teacher = Teacher(copy.deepcopy(letters.plain()))
    output = teacher.output.detach()
    if method == "eagle":
        net, ids = load_head(folder, teacher.embedding.weight.detach(), output)
        student = EagleMethod(teacher, ids, EagleTrainOptions(features="0,1", intermediate=40))
        student.net = net
        return float(student.loss(batch, teacher.read(batch, student.layers)))
    if method in HEADS:
        _, weights, ids = stored.read(folder, method)
        kind = methods.get(method)
        student = kind(teacher, ids, kind.options(**SIZES[method]))
        student.net.requires_grad_(False).load_state_dict({name: weight.float() for name, weight in weights.items()})
        return float(student.loss(batch, teacher.read(batch, student.layers)))
    model, ids = load_draft(folder, teacher.model, output, teacher.model.config)
    probs = teacher.log_probs(teacher.read(batch).last[batch.supervised], ids).exp()
    return float(functional.cross_entropy(model(batch.tokens).logits[batch.supervised], probs))


@pytest.mark.parametrize(
    ("method", "precision"),
    [("eagle", "int8"), ("eagle", "bf16"), ("draft_model", "int8"), *((method, "int8") for method in HEADS)],
)
def test_its_first_loss_is_that_of_the_folder_and_its_tokens_are_too(method, precision, begun, target, tmp_path):
    folder = rewrite(begun[method], tmp_path / "from", method, precision)
    run(method, target, tmp_path, start=str(folder), steps=1)
    (entry,) = [json.loads(line) for line in (tmp_path / "work/journal.jsonl").read_text().splitlines()]
    assert entry["loss"] == pytest.approx(loss_of(method, folder, first_batch(tmp_path)), rel=1e-5)
    config, _, ids = stored.read(tmp_path, method)
    assert torch.equal(ids, ODD)
    assert config["training"]["vocab"] == len(ODD)
    assert config["training"]["start"] == f"from, sha256 {stored.read(folder, method)[0]['sha256']}"


def test_a_markov_head_can_be_added_and_changes_nothing_at_first(begun, target, tmp_path):
    run("dflash", target, tmp_path / "one", start=str(begun["dflash"]), markov=16, steps=1)
    (entry,) = [json.loads(line) for line in (tmp_path / "one/work/journal.jsonl").read_text().splitlines()]
    assert entry["loss"] == pytest.approx(loss_of("dflash", begun["dflash"], first_batch(tmp_path / "one")), rel=1e-5)
    assert stored.read(tmp_path / "one", "dflash")[0]["markov"] == 16
    with pytest.raises(ValueError, match=r"markov is 32, and the drafter in .*one has 16"):
        run("dflash", target, tmp_path / "two", start=str(tmp_path / "one"), markov=32)


@pytest.mark.parametrize("method", ["medusa", "prophet"])
def test_a_recurrent_part_can_be_added_and_changes_nothing_at_first_but_is_trained(method, begun, target, tmp_path):
    run(method, target, tmp_path, start=str(begun[method]), recurrent=16, steps=2)
    first = json.loads((tmp_path / "work/journal.jsonl").read_text().split("\n")[0])
    assert first["loss"] == pytest.approx(loss_of(method, begun[method], first_batch(tmp_path)), rel=1e-5)
    config, weights, _ = stored.read(tmp_path, method)
    assert config["recurrent"] == 16
    assert weights["recurrent.down.weight"].abs().max() > 0


@pytest.mark.parametrize("method", ["eagle", "draft_model"])
def test_it_learns_on_and_goes_on_after_a_kill_but_not_from_another_drafter(method, begun, target, tmp_path):
    folder = str(begun[method])

    def stop(phase, done, total, new):
        if phase == "training" and done == 3:
            raise KeyboardInterrupt

    run(method, target, tmp_path / "whole", start=folder)
    with pytest.raises(KeyboardInterrupt):
        run(method, target, tmp_path / "cut", start=folder, on_progress=stop)
    assert torch.load(tmp_path / "cut/work/checkpoint.pt", weights_only=True)["step"] == 3
    other = rewrite(begun[method], tmp_path / "other", method, "bf16")
    with pytest.raises(ValueError, match=r"holds a training with other settings .start was '"):
        run(method, target, tmp_path / "cut", start=str(other))
    run(method, target, tmp_path / "cut", start=folder)
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    batch = first_batch(tmp_path / "whole")
    assert loss_of(method, tmp_path / "whole", batch) < loss_of(method, begun[method], batch) - 0.01


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"start": "nowhere"}, "start is 'nowhere', which is no trained drafter; name a folder, eagle or one of "),
        ({"start": "eagle"}, "start is 'eagle', which is no trained drafter"),
        ({"start": "smollm2-135m-draft"}, "holds no eagle drafter"),
        ({"start": "smollm2-135m-eagle", "vocab": 9}, "vocab is 9, and the drafter in .* has 8192; .* leave vocab out"),
        ({"start": "smollm2-135m-eagle"}, "the last drafted token is .* there and at most 18 here"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_answered(more, said, target, tmp_path):
    with pytest.raises(ValueError, match=said):
        run("eagle", target, tmp_path, **more)
    assert not (tmp_path / "work/answers").exists()


@pytest.mark.parametrize(
    ("method", "change", "said"),
    [
        ("eagle", {"heads": 2}, "heads is 2 there and 4 here"),
        ("eagle", {"rope_theta": 500.0}, "rope_theta is 500.0 there and 10000.0 here"),
        ("eagle", {"intermediate": 41}, r"down.weight is \(32, 40\) there and \(32, 41\) here"),
        ("prophet", {"head_dim": 4}, "head_dim is 4 there and 8 here"),
        ("draft_model", {"layers": "0,1"}, r"layers.1.* is absent there and \(32,\) here"),
        ("draft_model", {"weights": {"norm.weight": torch.ones(3)}}, r"norm.weight is \(3,\) there and \(32,\) here"),
    ],
)
def test_another_shape_is_refused(method, change, said, begun, target, tmp_path):
    other = rewrite(begun[method], tmp_path / "other", method, **change)
    with pytest.raises(ValueError, match=f"a drafter for this target cannot start from .*: .*{said}"):
        run(method, target, tmp_path, start=str(other))
    assert not (tmp_path / "work/answers").exists()


@pytest.mark.parametrize("method", ["eagle", "draft_model"])
def test_the_methods_own_name_is_the_one_shipped_for_the_target(method):
    trained = find_trained(method, method, ModelFiles("smollm2-135m", Path("anywhere"), "catalog"))
    assert trained is not None
    assert trained.folder in shipped().values()
    assert len(trained.ids) == 8192
    assert find_trained("", method, ModelFiles("smollm2-135m", Path("anywhere"), "catalog")) is None
