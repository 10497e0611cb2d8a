"""`models` as a user runs it: the default model and the shipped drafters."""

from __future__ import annotations

import shutil

import pytest

from slipstream.drafters.files import shipped

pytestmark = pytest.mark.model
HEAD, DRAFT = "smollm2-135m-eagle", "smollm2-135m-draft"


def test_models_and_shipped_drafters_are_listed(slipstream):
    shown = slipstream("models", "list").stdout
    for name in ("smollm2-135m ", f"{HEAD} ", f"{DRAFT} "):
        assert name in shown
    entries = {entry["name"]: entry for entry in slipstream("models", "list", "--json").report["models"]}
    assert entries["smollm2-135m"] == {"name": "smollm2-135m", "kind": "model", "installed": True}
    assert (entries[HEAD]["kind"], entries[HEAD]["target"]) == ("eagle", "smollm2-135m")


def test_a_model_and_its_drafters_are_inspected(slipstream):
    facts = slipstream("models", "inspect", "smollm2-135m", "--json").report
    assert facts["layers"] == 30
    assert facts["vocabulary"] == 49152
    head = slipstream("models", "inspect", HEAD, "--json").report
    assert (head["kind"], head["target"], head["precision"]) == ("eagle", "smollm2-135m", "int6")
    assert head["tau"]["code"]["greedy"] > 3
    by_folder = slipstream("models", "inspect", head["path"], "--json").report
    assert by_folder["sha256"] == head["sha256"]
    assert slipstream("models", "inspect", "nothing-like-it").returncode == 2


def test_what_is_kept_and_shipped_is_verified(slipstream):
    done = slipstream("models", "verify", HEAD, DRAFT)
    assert done.returncode == 0
    assert f"ok      {HEAD}: 1 file matches its recorded checksum" in done.stdout
    report = slipstream("models", "verify", "smollm2-135m", "--json").report
    assert report["passed"]
    weights = ("model.blocks", "model.safetensors")
    assert any(file["name"] in weights and file["recorded"] for file in report["models"][0]["files"])


def test_a_damaged_drafter_is_found(slipstream, tmp_path):
    folder = shutil.copytree(shipped.FOLDER / HEAD, tmp_path / "a [bold] head")
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    done = slipstream("models", "verify", str(folder))
    assert done.returncode == 1
    assert f"DAMAGED {folder}: model.safetensors is damaged (hash" in done.stdout
    assert slipstream("models", "inspect", str(folder)).returncode == 2


def test_a_folder_without_weights_is_one_sentence(slipstream, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for verb in ("inspect", "pull"):
        done = slipstream("models", verb, str(tmp_path))
        assert done.returncode == 2
        assert "has no weights to load" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
