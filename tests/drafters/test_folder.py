"""A head comes back from its folder as it was stored, or not at all, and the engine takes the folder for a drafter."""

from __future__ import annotations

import json

import pytest
import torch

import letters
from heads import head, random_head
from slipstream.core.sampling import Sampling
from slipstream.drafters.build import build_drafter, drafter_kind
from slipstream.drafters.eagle.folder import load_head, save_head
from slipstream.drafters.eagle.network import EagleConfig
from slipstream.drafters.files import folder as files
from slipstream.drafters.files.folder import trained_kind
from slipstream.engines.base import Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.sources import store

CONFIG = EagleConfig(16, 4, 2, 8, 24, (0, 1), 6)
IDS = torch.tensor([1, 2, 5, 7, 8, 9])
MATRIX = torch.randn(12, 16, generator=torch.Generator().manual_seed(2)).bfloat16().float()


def saved(path, precision="int8", **about):
    net = random_head(CONFIG, MATRIX[IDS])
    save_head(path / "head", net, IDS, precision, about)
    return net, path / "head"


@pytest.mark.parametrize(("precision", "step"), [("int8", 1 / 254), ("int6", 1 / 62), ("bf16", 0.0)])
def test_a_head_comes_back_within_a_rounding_of_itself(tmp_path, precision, step):
    net, folder = saved(tmp_path, precision, target="tiny", tau=2.5)
    found, ids = load_head(folder, MATRIX, MATRIX)
    assert ids.tolist() == IDS.tolist()
    assert found.config == net.config
    assert torch.equal(found.output, MATRIX[IDS])
    for (name, old), new in zip(net.state_dict().items(), found.state_dict().values(), strict=True):
        if old.ndim == 1:
            assert torch.equal(old, new), name
        else:
            room = old.abs().amax(1, keepdim=True) * (step + 2**-8)
            assert bool(((old - new).abs() <= room).all()), name
            assert torch.equal(new.bfloat16().float(), new), "two bytes a number are enough for the kernel"
    about = json.loads((folder / "config.json").read_text())
    assert (about["target"], about["tau"], about["slipstream_drafter"]) == ("tiny", 2.5, "eagle")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("ids", "size"),
    [([], 0), ([0], 1), ([1, 2, 5, 7, 8, 9], 2), ([9, 2, 5], 6), ([3, 3], 4), ([70_000, 70_001], 8), ([0, 9000], 4)],
)
def test_ids_come_back_and_take_little_room(ids, size):
    stored = files._stored_ids(torch.tensor(ids, dtype=torch.long))
    assert files._restored_ids(stored).tolist() == ids
    assert stored.nbytes == size


def test_int8_takes_half_the_bytes_and_int6_less(tmp_path):
    size = {}
    for precision in ("int8", "int6", "bf16"):
        save_head(tmp_path / precision, random_head(EagleConfig(64, 4, 2, 16, 256, (0, 1), 6), MATRIX), IDS, precision)
        size[precision] = (tmp_path / precision / "model.safetensors").stat().st_size
    assert size["int8"] < 0.6 * size["bf16"]
    assert size["int6"] < 0.82 * size["int8"]


def test_in_a_bfloat16_target_angles_stay_exact(tmp_path):
    _, folder = saved(tmp_path)
    net, _ = load_head(folder, MATRIX.bfloat16(), MATRIX.bfloat16())
    assert {p.dtype for p in net.parameters()} == {torch.bfloat16}
    assert net.frequency.dtype == torch.float32
    state = net.fuse(torch.ones(3, 32, dtype=torch.bfloat16))
    assert net.logits(state).dtype == torch.bfloat16


def test_a_folder_says_what_it_is(tmp_path):
    _, folder = saved(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    assert trained_kind(folder) == drafter_kind(str(folder)) == "eagle"
    assert trained_kind(tmp_path) is None
    assert drafter_kind(str(tmp_path / "model")) == "draft_model"


def test_an_installed_model_drafts_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="no drafter called 'small'"):
        drafter_kind("small")
    store.build(store.home() / "small", lambda folder: {"name": "small"})
    assert drafter_kind("small") == drafter_kind("scaled:small:2x") == "draft_model"


def broken(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path):
    net, folder = saved(tmp_path)
    with pytest.raises(ValueError, match="16 wide, and this one is 8"):
        load_head(folder, MATRIX[:, :8], MATRIX[:, :8])
    with pytest.raises(ValueError, match="reaches token 9; the target has tokens 0 to 7"):
        load_head(folder, MATRIX[:8], MATRIX[:8])
    with pytest.raises(ValueError, match="int4"):
        save_head(folder, net, IDS, "int4")
    with pytest.raises(ValueError, match="ascending"):
        save_head(folder, net, IDS.flip(0))
    broken(folder, lambda config: config.pop("slipstream_drafter"))
    with pytest.raises(ValueError, match="holds no eagle drafter"):
        load_head(folder, MATRIX, MATRIX)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config.pop("heads"), "lacks heads"),
        (lambda config: config.update(intermediate=25), "does not fit"),
        (lambda config: config.update(sha256="0" * 64), "damaged"),
        (lambda config: config.pop("sha256"), "damaged"),
    ],
)
def test_a_configuration_that_speaks_of_another_head_is_refused(tmp_path, change, message):
    _, folder = saved(tmp_path)
    broken(folder, change)
    with pytest.raises(ValueError, match=message):
        load_head(folder, MATRIX, MATRIX)


def test_damaged_and_missing_weights_are_refused(tmp_path):
    _, folder = saved(tmp_path)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        load_head(folder, MATRIX, MATRIX)
    weights.unlink()
    with pytest.raises(ValueError, match="cannot read"):
        load_head(folder, MATRIX, MATRIX)


def test_a_write_that_dies_leaves_the_old_head_or_a_refusal(tmp_path, monkeypatch):
    net, folder = saved(tmp_path)

    def dies(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(files, "save_file", dies)
    with pytest.raises(OSError, match="full"):
        save_head(folder, net, IDS, "bf16")
    load_head(folder, MATRIX, MATRIX)
    assert len(list(folder.iterdir())) == 2


@pytest.fixture
def shipped(tmp_path):
    target = letters.target()
    ids = range(0, target.model.vocab, 2)
    save_head(tmp_path / "head", head(letters.plain(), ids, features=(0, 1)), torch.tensor(ids))
    return target, str(tmp_path / "head")


def test_the_engine_drafts_with_a_folder_from_the_start_or_when_a_request_asks_for_it(shipped):
    target, folder = shipped
    sampling, asked = Sampling(0.9, seed=4), Speculation(drafter=folder, depth=2)
    texts, drafted = [], []
    for drafter in ("none", folder):
        with NativeEngine(target, drafter, verify="coupled", depth=3) as engine:
            texts.append(engine.generate("abcab", sampling, max_tokens=24)[0].token_ids)
            drafted.append(engine.stats["drafted"])
            texts.append(engine.generate("abcab", sampling, max_tokens=24, speculation=asked)[0].token_ids)
            drafted.append(engine.stats["drafted"])
            assert not engine.stats["failures"]
    assert texts == [texts[0]] * 4
    assert drafted[0] == 0
    assert drafted[1] > 10
    assert drafted[3] > drafted[2] > 10


def test_the_option_names_the_folder_and_its_absence_is_told(shipped):
    target, folder = shipped
    assert build_drafter("eagle", target, {"model": folder}).needs.features == (0, 1)
    with pytest.raises(ValueError, match="no eagle head is shipped for letters; `slipstream train eagle` makes one"):
        build_drafter("eagle", target)
    with pytest.raises(ValueError, match="no option 'depth'"):
        build_drafter("eagle", target, {"model": folder, "depth": "3"})
    with pytest.raises(ValueError, match="cannot read"):
        build_drafter("eagle", target, {"model": folder + "s"})
