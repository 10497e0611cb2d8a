"""Files that were cut short or changed are found, by name; `pull` calls no such model ready."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import gguf_files
import letters
from slipstream.models.sources import catalog, hub, store
from slipstream.models.sources.catalog import CatalogError, resolve
from slipstream.models.sources.gguf.size import cut_short
from slipstream.models.sources.verify import check_files
from tiny import build


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama", ["Q8_0"])


def write_folder(path: Path) -> Path:
    build("llama").save_pretrained(path)
    letters.tokenizer().save_pretrained(path)
    return path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def problems(name: str) -> dict[str, str | None]:
    return {check.name: check.problem for check in catalog.verify(name) if check.problem}


@pytest.mark.parametrize("share", [1e-4, 0.005, 0.5, 0.9999])
def test_a_gguf_file_that_was_cut_is_one_sentence(gguf: Path, tmp_path: Path, share: float) -> None:
    data = gguf.read_bytes()
    assert cut_short(gguf) is None
    cut = tmp_path / "cut [half].gguf"
    cut.write_bytes(data[: max(6, int(share * len(data)))])
    with pytest.raises(CatalogError, match=r"is cut short: it .*; copy or download it again$") as caught:
        resolve(str(cut))
    assert "\n" not in str(caught.value)
    if share >= 0.5:
        assert f"of {len(data):,} bytes" in str(caught.value)


def test_any_prefix_of_a_gguf_file_is_cut_short(gguf: Path, tmp_path: Path) -> None:
    data, cut = gguf.read_bytes(), tmp_path / "cut.gguf"
    for length in [*range(5, 400, 7), *range(400, len(data), len(data) // 60), len(data) - 1]:
        cut.write_bytes(data[:length])
        assert cut_short(cut), length


def test_a_converted_model_is_verified_and_made_again(gguf: Path, cache: Path) -> None:
    files = resolve(str(gguf))
    name = files.path.name
    checks = catalog.verify(name)
    assert {check.name for check in checks} >= {"config.json", "tokenizer.json", "model.blocks"}
    assert all(check.recorded and not check.problem for check in checks)
    sha256 = files.sha256
    assert sha256 == store.sha256(catalog.full_folder(files.path) / "model.safetensors")
    flip(files.path / "tokenizer.json")
    (files.path / "generation_config.json").unlink()
    assert problems(name) == {
        "generation_config.json": "is missing",
        "tokenizer.json": problems(name)["tokenizer.json"],
    }
    assert "is damaged (hash" in str(problems(name)["tokenizer.json"])
    again = catalog.pull(str(gguf))
    assert problems(name) == {}
    assert again.sha256 == sha256


def test_truncated_weights_are_not_called_ready(gguf: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = resolve(str(gguf))
    weights = files.path / "model.blocks"
    whole = weights.read_bytes()
    for data in (whole[: len(whole) // 2], whole[:5], b""):
        weights.write_bytes(data)
        with pytest.raises(CatalogError, match=r"is damaged: model.blocks .*; `slipstream models pull .* again"):
            resolve(str(gguf))
        catalog.pull(str(gguf))
        assert "is damaged (model.blocks is damaged" in capfd.readouterr().err
        assert weights.read_bytes() == whole


def test_a_folder_of_the_users_own(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    assert catalog.pull(str(folder)).path == folder
    assert not any(check.recorded or check.problem for check in catalog.verify(str(folder)))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "and its header asks for" in str(problems(str(folder))["model.safetensors"])
    for verb in (catalog.pull, catalog.inspect, resolve):
        with pytest.raises(CatalogError, match=r"model.safetensors holds [\d,]+ bytes, .* copy or download it again"):
            verb(str(folder))


def test_a_copy_keeps_its_checksums(gguf: Path, tmp_path: Path) -> None:
    copy = catalog.convert(str(gguf), tmp_path / "copy")
    assert all(check.recorded for check in catalog.verify(str(copy)))
    flip(copy / "config.json")
    with pytest.raises(CatalogError, match=r"is damaged: config.json is damaged \(hash|malformed"):
        catalog.pull(str(copy))


def test_manifests_of_earlier_versions_name_the_weights_only(gguf: Path) -> None:
    folder = catalog.full_folder(resolve(str(gguf)).path)
    about = store.manifest(folder) or {}
    del about["files"]
    (folder / store.MANIFEST).write_text(json.dumps(about))
    checks = {check.name: check for check in check_files(folder)}
    assert checks["model.safetensors"].recorded
    assert not checks["config.json"].recorded
    flip(folder / "model.safetensors")
    assert problems(folder.name)


def hub_model(tmp_path: Path, repo: str) -> Path:
    """A model as the hub's cache keeps it: links to files that are named by their hashes."""
    source = write_folder(tmp_path / "source")
    place = tmp_path / f"models--{repo.replace('/', '--')}"
    snapshot = place / "snapshots" / ("0" * 40)
    for folder in (snapshot, place / "refs", place / "blobs"):
        folder.mkdir(parents=True)
    (place / "refs" / "main").write_text("0" * 40)
    for path in source.iterdir():
        data = path.read_bytes()
        large = path.suffix == ".safetensors"
        name = hashlib.sha256(data) if large else hashlib.sha1(b"blob %d\0" % len(data) + data)
        (place / "blobs" / name.hexdigest()).write_bytes(data)
        (snapshot / path.name).symlink_to(place / "blobs" / name.hexdigest())
    return snapshot


def test_files_of_the_hub_are_checked_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot = hub_model(tmp_path, "org/tiny")
    assert all(check.recorded and not check.problem for check in catalog.verify("org/tiny"))
    fetched: list[Any] = []

    def download(repo: str, revision: str | None, options: Any) -> Path:
        fetched.append((repo, options))
        return snapshot

    monkeypatch.setattr(hub, "_download", download)
    catalog.pull("org/tiny")
    assert fetched == []
    flip(snapshot / "tokenizer.json")
    assert list(problems("org/tiny")) == ["tokenizer.json"]
    catalog.pull("org/tiny")
    assert fetched == [("org/tiny", {"allow_patterns": ["tokenizer.json"], "force_download": True})]
