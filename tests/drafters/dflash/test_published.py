"""DFlash checkpoints come from DFlash's and from speculators' layout, go to the latter, and say the same everywhere."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import letters
from blocks import dflash, reference, stack
from slipstream.core.loop import decode
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.drafters.dflash.exporter import export_stack
from slipstream.drafters.dflash.folder import load_stack, save_stack
from slipstream.drafters.dflash.importer import import_stack, is_stack
from slipstream.drafters.files.checkpoints import convert_head, is_published
from slipstream.drafters.files.folder import trained_kind
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed

VOCAB, MASK, SLOTS, LAYERS = 19, 18, 4, 2
MASKED = {"layout": "masked", "anchor_predicts": False, "mask_token": MASK}
DRAFT = [3, 5, 8, 9, 14]


def rms(x, weight, eps=1e-5):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(x, start, theta=500.0):
    """Rotary positions by complex numbers: x is tokens by heads by dim, and the first token stands at `start`."""
    half = x.shape[-1] // 2
    angle = (start + torch.arange(len(x)))[:, None, None] * theta ** (-torch.arange(half) / half)
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


def described(tensors, features, anchor, mask, dim=8):
    """The hidden states of a block's slots by the published description, one head and one slot after the other."""
    w = {name: tensor.float() for name, tensor in tensors.items()}
    context = rms(features @ w["fc.weight"].T, w["hidden_norm.weight"])
    x, known = torch.stack([anchor, *[mask] * (SLOTS - 1)]), len(features)
    for n in range(LAYERS):
        own = {name.removeprefix(f"layers.{n}."): tensor for name, tensor in w.items()}
        normed = rms(x, own["input_layernorm.weight"])
        both = torch.cat([context, normed])
        q = (normed @ own["self_attn.q_proj.weight"].T).unflatten(1, (-1, dim))
        k, v = ((both @ own[f"self_attn.{part}_proj.weight"].T).unflatten(1, (-1, dim)) for part in "kv")
        q = turned(rms(q, own["self_attn.q_norm.weight"]), known)
        k = turned(rms(k, own["self_attn.k_norm.weight"]), 0)
        out = torch.zeros_like(q)
        for t in range(len(q)):
            for h in range(q.shape[1]):
                g = h // (q.shape[1] // k.shape[1])
                out[t, h] = (k[:, g] @ q[t, h] / dim**0.5).softmax(0) @ v[:, g]
        x = x + out.flatten(1) @ own["self_attn.o_proj.weight"].T
        y = rms(x, own["post_attention_layernorm.weight"])
        gate, up = y @ own["mlp.gate_proj.weight"].T, y @ own["mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ own["mlp.down_proj.weight"].T
    return rms(x, w["norm.weight"])


def published(folder: Path, speculators: bool, drop=(), **config) -> dict:
    """A checkpoint for the model of letters: with all tokens as DFlash writes it, or with some as speculators does."""
    generator = torch.Generator().manual_seed(7)

    def matrix(*shape):
        return (torch.randn(*shape, generator=generator) * 0.3).bfloat16()

    def norm(size):
        return 1 + 0.2 * torch.randn(size, generator=generator)

    tensors = {"fc.weight": matrix(32, 64), "hidden_norm.weight": norm(32), "norm.weight": norm(32)}
    for n in range(LAYERS):
        sizes = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32)}
        sizes |= {"self_attn.o_proj": (32, 32), "mlp.gate_proj": (24, 32), "mlp.up_proj": (24, 32)}
        tensors |= {f"layers.{n}.{name}.weight": matrix(*size) for name, size in sizes.items()}
        tensors[f"layers.{n}.mlp.down_proj.weight"] = matrix(32, 24)
        tensors |= {f"layers.{n}.{name}_layernorm.weight": norm(32) for name in ("input", "post_attention")}
        tensors |= {f"layers.{n}.self_attn.{name}_norm.weight": norm(8) for name in "qk"}
    layer = {
        "model_type": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "rope_theta": 500.0,
        "rms_norm_eps": 1e-5,
    }
    if speculators:
        ids = torch.tensor(DRAFT[::-1])
        tensors |= {"lm_head.weight": matrix(len(ids), 32), "d2t": ids - torch.arange(len(ids))}
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)
        said = {
            "speculators_model_type": "dflash",
            "transformer_layer_config": layer,
            "draft_vocab_size": len(ids),
            "aux_hidden_state_layer_ids": [1, 2],
            "mask_token_id": MASK,
            "speculators_config": {"verifier": {"name_or_path": "letters"}},
        }
    else:
        said = layer | {
            "architectures": ["DFlashDraftModel"],
            "dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": MASK},
        }
    folder.mkdir()
    save_file({name: tensor for name, tensor in tensors.items() if name not in drop}, folder / "model.safetensors")
    values = said | {"block_size": SLOTS} | config
    (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    return tensors


def matrices():
    model = letters.plain()
    return (m.weight.detach() for m in (model.get_input_embeddings(), model.get_output_embeddings()))


@pytest.mark.parametrize("speculators", [False, True])
def test_a_published_stack_says_here_what_it_says_by_its_description(tmp_path, speculators):
    tensors = published(tmp_path / "theirs", speculators)
    assert is_published(tmp_path / "theirs")
    assert convert_head(str(tmp_path / "theirs"), tmp_path / "ours") == tmp_path / "ours"
    assert trained_kind(tmp_path / "ours") == "dflash"
    embedding, output = matrices()
    net, ids = load_stack(tmp_path / "ours", embedding, output)
    assert ids.tolist() == (DRAFT if speculators else list(range(VOCAB)))
    assert (net.config.features, net.config.block, net.config.slots) == ((0, 1), SLOTS - 1, SLOTS)
    rows = tensors["lm_head.weight"].float().flip(0) if speculators else output
    torch.manual_seed(1)
    text = [3, 7, 9, 4, 11, 6]
    target = TorchModel(copy.deepcopy(letters.plain()))
    drafter = dflash(target, ids.tolist(), features=(0, 1), block=SLOTS - 1, **MASKED)
    drafter.slots.net = net
    found = reference(letters.plain(), drafter, Row(Request(text, Sampling(0), 4)))
    states = letters.plain()(torch.tensor([text]), output_hidden_states=True).hidden_states
    # the state after the last layer is normalised in the output of transformers, so it is taken by a hook
    from heads import layer_output

    features = torch.cat([layer_output(letters.plain(), text, n) for n in (0, 1)], -1)[:-1]
    torch.testing.assert_close(features[:, :32], states[1][0, :-1])
    expected = described(tensors, features, embedding[text[-1]], embedding[MASK])[1:] @ rows.T
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1


def test_a_masked_stack_drafts_by_its_laws_and_greedy_text_is_that_of_plain_decoding(tmp_path):
    published(tmp_path / "theirs", True)
    import_stack(tmp_path / "theirs", tmp_path / "ours")
    texts = []
    for drafter in ("none", str(tmp_path / "ours")):
        with NativeEngine(letters.target(), drafter, depth=3) as engine:
            texts.append(engine.generate("abcab", Sampling(temperature=0), max_tokens=20)[0].token_ids)
            drafted = engine.stats["drafted"]
    assert texts[0] == texts[1]
    assert drafted > 20


@pytest.mark.parametrize("anchor_predicts", [False, True])
def test_the_laws_of_a_masked_stack_are_those_over_the_whole_text(anchor_predicts):
    plain = letters.plain()
    target = TorchModel(copy.deepcopy(plain))
    layout = MASKED | {"anchor_predicts": anchor_predicts}
    drafter = dflash(target, range(3, VOCAB), features=(0, 1), block=3, **layout)
    compared, logits = 0, drafter.slots.outputs

    def checked(rows, depth):
        nonlocal compared
        found = logits(rows, depth)
        for n, row in enumerate(rows):
            torch.testing.assert_close(found[n], reference(plain, drafter, row)[:depth], rtol=1e-3, atol=1e-4)
            compared += 1
        return found

    drafter.slots.outputs = checked
    rows = [Row(Request([3 + n, 4, 5], Sampling(1.0, seed=n), 8 + n)) for n in range(2)]
    for _ in decode(rows, target, drafter, rules.get("token")(), Fixed(3)):
        drafter.slots.check_integrity()
    assert compared > 6


@pytest.mark.parametrize("ids", [DRAFT, list(range(VOCAB))])
def test_an_exported_stack_comes_back_the_same(tmp_path, ids):
    model = copy.deepcopy(letters.plain()).bfloat16().float()
    net = stack(model, ids, features=(0, 1), block=3, **MASKED)
    save_stack(tmp_path / "ours", net, torch.tensor(ids), "bf16", {"target": "letters"})
    export_stack(tmp_path / "ours", tmp_path / "theirs", model, "letters")
    config = json.loads((tmp_path / "theirs/config.json").read_text())
    assert (config["block_size"], config["mask_token_id"], config["aux_hidden_state_layer_ids"]) == (4, MASK, [1, 2])
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    names = load_file(tmp_path / "theirs/model.safetensors").keys()
    assert ("lm_head.weight" in names) == ("d2t" in names) == (len(ids) < VOCAB)
    import_stack(tmp_path / "theirs", tmp_path / "back")
    embedding, output = (m.weight.detach() for m in (model.get_input_embeddings(), model.get_output_embeddings()))
    (first, _), (second, back_ids) = (load_stack(tmp_path / name, embedding, output) for name in ("ours", "back"))
    assert back_ids.tolist() == ids
    features, anchor = torch.randn(6, 64, generator=torch.Generator().manual_seed(2)), embedding[5]
    for one, two in zip(block_states(first, features, anchor), block_states(second, features, anchor), strict=True):
        # the scales of ours are folded into a matrix, which an import rounds to bfloat16
        torch.testing.assert_close(one, two, rtol=0.02, atol=0.02)
    torch.testing.assert_close(first.output, second.output)


def block_states(net, features, anchor):
    """Every part of the network that reads weights, on the same inputs."""
    fused, x = net.fuse(features), net.inputs(anchor, features[0, :32])
    position = torch.arange(len(x))
    for layer in net.stack:
        yield from layer.context_keys_values(fused, torch.arange(len(fused)), net.frequency)
        yield layer.queries(x, position, net.frequency)
        x = layer.finish(x, layer.queries(x, position, net.frequency).flatten(1))
    yield net.logits(x)


def test_a_stack_of_the_other_layout_is_not_exported(tmp_path):
    model = letters.plain()
    save_stack(tmp_path / "ours", stack(model, DRAFT, features=(0, 1)), torch.tensor(DRAFT), "bf16", {"target": "x"})
    with pytest.raises(ValueError, match=r"has the layout joined, which vLLM does not know; `slipstream train dflash"):
        export_stack(tmp_path / "ours", tmp_path / "theirs", model, "x")


@pytest.mark.parametrize(
    ("config", "drop", "reason"),
    [
        ({"speculators_model_type": "dflash2"}, (), "it is a dflash2 checkpoint"),
        ({"projector_type": "domino"}, (), "it has a correction head"),
        ({"target_hidden_size": 64}, (), "its target has another width"),
        ({"mask_token_id": None}, (), "lacks mask_token_id"),
        ({"aux_hidden_state_layer_ids": None}, (), "lacks target_layer_ids"),
        ({"aux_hidden_state_layer_ids": [0, 2]}, (), "names layer -1; layers begin at 0"),
        ({"draft_vocab_size": 4}, (), "d2t in .* must give 4 different token ids"),
        ({"dflash_config": {"causal": True}}, (), "its attention is causal"),
        ({"dflash_config": {"selector_top_k": 16}}, (), "it is a DFlash 2 checkpoint"),
        ({}, ("layers.1.self_attn.q_norm.weight",), r"q_norm.weight in .* is of shape \[0\]"),
    ],
)
def test_what_the_network_does_not_compute_is_refused(tmp_path, config, drop, reason):
    published(tmp_path / "theirs", True, drop, **config)
    assert is_stack(tmp_path / "theirs")
    with pytest.raises(ValueError, match=reason):
        import_stack(tmp_path / "theirs", tmp_path / "ours")


def test_layers_that_compute_something_else_and_unknown_tensors_are_refused(tmp_path):
    published(tmp_path / "window", False, sliding_window=8, layer_types=["sliding_attention"] * LAYERS)
    with pytest.raises(ValueError, match="its attention has a window"):
        import_stack(tmp_path / "window", tmp_path / "ours")
    tensors = published(tmp_path / "more", False)
    save_file(tensors | {"markov.weight": torch.zeros(2)}, tmp_path / "more/model.safetensors")
    with pytest.raises(ValueError, match=r"holds markov.weight, which has no place in a DFlash stack"):
        import_stack(tmp_path / "more", tmp_path / "ours")
    published(tmp_path / "mask", False, dflash_config={"target_layer_ids": [0, 1], "mask_token_id": VOCAB})
    import_stack(tmp_path / "mask", tmp_path / "ours")
    with pytest.raises(ValueError, match=r"the mask token of .* is 19; the target has tokens 0 to 18"):
        load_stack(tmp_path / "ours", *matrices())
