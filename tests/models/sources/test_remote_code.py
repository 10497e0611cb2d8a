"""Code that a model brings along runs only where that is asked for, and then as any other model does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import letters
import slipstream as ss
from slipstream.models.sources.catalog import CatalogError, resolve
from tiny import build

CODE = """
from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "a_model_of_my_own"


class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""
OPTIONS = {"max_tokens": 12, "raw": True}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Llama under another name, beside its code."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    torch.manual_seed(0)
    build("llama", bos_token_id=None, eos_token_id=0).save_pretrained(tmp_path / "plain")
    letters.tokenizer().save_pretrained(tmp_path / "plain")
    own = tmp_path / "own"
    own.mkdir()
    for path in (tmp_path / "plain").iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    config = json.loads((own / "config.json").read_text())
    names = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    changes = {"model_type": "a_model_of_my_own", "architectures": ["OwnModel"], "auto_map": names}
    (own / "config.json").write_text(json.dumps(config | changes))
    (own / "own.py").write_text(CODE)
    return tmp_path


def test_a_model_with_its_own_code_is_refused_unless_trusted(folder: Path) -> None:
    with pytest.raises(CatalogError, match="brings its own code; if you trust its author, --trust-remote-code"):
        ss.Engine(str(folder / "own"))
    texts = []
    for name in ("plain", "own"):
        with ss.Engine(str(folder / name), "ngram", trust_remote_code=True) as engine:
            texts.append(engine.generate("abcabc", ss.Sampling(temperature=0), **OPTIONS)[0].text)
    assert texts[0] == texts[1] != ""


def test_trust_changes_nothing_for_models_without_code(folder: Path) -> None:
    assert resolve(str(folder / "plain"), trust_remote_code=True) == resolve(str(folder / "plain"))
    assert resolve(str(folder / "own"), trust_remote_code=True).trust_remote_code


def test_a_draft_model_with_its_own_code(folder: Path) -> None:
    with pytest.raises(CatalogError, match="brings its own code"):
        ss.Engine(str(folder / "plain"), str(folder / "own"))
    with ss.Engine(str(folder / "plain"), str(folder / "own"), depth=2, trust_remote_code=True) as engine:
        done = engine.generate("abcabc", ss.Sampling(temperature=0), **OPTIONS)[0]
    assert done.tau > 1
