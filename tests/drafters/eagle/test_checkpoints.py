"""Heads go to the layout of `speculators` and come from published ones, and say the same there and here."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import letters
from heads import head
from slipstream.cli.models import convert
from slipstream.core.sampling import Sampling
from slipstream.drafters.eagle.exporter import export_head
from slipstream.drafters.eagle.folder import load_head, save_head
from slipstream.drafters.eagle.importer import import_head
from slipstream.drafters.eagle.network import EagleConfig
from slipstream.drafters.files import checkpoints as exchange
from slipstream.drafters.files.checkpoints import convert_head, is_published
from slipstream.drafters.files.folder import trained_kind
from slipstream.engines.native.engine import NativeEngine

HIDDEN, HEADS, KV, DIM, WIDE, VOCAB, THETA, EPS = 16, 4, 2, 8, 24, 12, 500.0, 1e-4
DRAFT = [2, 5, 6, 9, 11]
MATRIX = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(2))


def rms(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(x, theta):
    """Rotary positions by complex numbers: x is tokens by heads by dim, and token t stands at t."""
    half = x.shape[-1] // 2
    angle = torch.arange(len(x))[:, None, None] * theta ** (-torch.arange(half) / half)
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


def eagle3(tensors, layer, embedding, features, theta, eps, dim):
    """Logits at every slot of a text, by the published description, one head and one slot after the other."""
    w = {name.removeprefix(layer): tensor.float() for name, tensor in tensors.items()}
    state = features @ w["fc.weight"].T
    both = torch.cat([rms(embedding, w["input_layernorm.weight"], eps), rms(state, w["hidden_norm.weight"], eps)], 1)
    q, k, v = ((both @ w[f"self_attn.{n}_proj.weight"].T).unflatten(1, (-1, dim)) for n in "qkv")
    q, k, out = turned(q, theta), turned(k, theta), torch.zeros_like(q)
    for t in range(len(q)):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            weight = (k[: t + 1, g] @ q[t, h] / dim**0.5).softmax(0)
            out[t, h] = weight @ v[: t + 1, g]
    state = state + out.flatten(1) @ w["self_attn.o_proj.weight"].T
    x = rms(state, w["post_attention_layernorm.weight"], eps)
    gate, up = x @ w["mlp.gate_proj.weight"].T, x @ w["mlp.up_proj.weight"].T
    state = state + (gate * gate.sigmoid() * up) @ w["mlp.down_proj.weight"].T
    return rms(state, w["norm.weight"], eps) @ w["lm_head.weight"].T


def ours(net, embedding, features):
    """The same with a network of ours."""
    state = net.fuse(features)
    q, k, v = net.project(embedding, state, torch.arange(len(state)))
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return net.logits(net.finish(state, attended.transpose(0, 1).flatten(1)))


def inputs(hidden, n=7):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, hidden, generator=generator), torch.randn(n, 3 * hidden, generator=generator)


def published(folder, layer="midlayer.", drop=(), **config):
    """A checkpoint as SafeAILab publishes them, with output rows that are not in the order of the target's ids."""
    generator = torch.Generator().manual_seed(7)

    def matrix(*shape):
        return (torch.randn(*shape, generator=generator) * (0.3 if len(shape) > 1 else 0.2) + (len(shape) < 2)).half()

    ids = torch.tensor(DRAFT[::-1])
    tensors = {
        "fc.weight": matrix(HIDDEN, 3 * HIDDEN),
        layer + "input_layernorm.weight": matrix(HIDDEN),
        layer + "hidden_norm.weight": matrix(HIDDEN),
        layer + "post_attention_layernorm.weight": matrix(HIDDEN),
        layer + "self_attn.q_proj.weight": matrix(HEADS * DIM, 2 * HIDDEN),
        layer + "self_attn.k_proj.weight": matrix(KV * DIM, 2 * HIDDEN),
        layer + "self_attn.v_proj.weight": matrix(KV * DIM, 2 * HIDDEN),
        layer + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * DIM),
        layer + "mlp.gate_proj.weight": matrix(WIDE, HIDDEN),
        layer + "mlp.up_proj.weight": matrix(WIDE, HIDDEN),
        layer + "mlp.down_proj.weight": matrix(HIDDEN, WIDE),
        "norm.weight": matrix(HIDDEN),
        "lm_head.weight": matrix(len(DRAFT), HIDDEN),
        "d2t": ids - torch.arange(len(ids)),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True),
    }
    tensors = {
        n: t.bfloat16() if t.ndim > 1 else t for n, t in tensors.items() if n not in drop
    }  # ours stores bfloat16
    said = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": DIM,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "draft_vocab_size": len(DRAFT),
        "rope_theta": THETA,
        "rms_norm_eps": EPS,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    } | config
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({k: v for k, v in said.items() if v is not None}))
    return tensors


@pytest.mark.parametrize("layer", ["midlayer.", "layers.0.", "model.layers.0."])
def test_a_published_head_says_here_what_it_says_by_its_description(tmp_path, layer):
    tensors = published(tmp_path / "theirs", layer)
    assert is_published(tmp_path / "theirs")
    assert convert_head(str(tmp_path / "theirs"), tmp_path / "ours") == tmp_path / "ours"
    net, ids = load_head(tmp_path / "ours", MATRIX, MATRIX)
    assert ids.tolist() == DRAFT
    assert net.config.features == (1, 3, 4)
    assert net.config.own_output
    embedding, features = inputs(HIDDEN)
    expected = eagle3(tensors, layer, embedding, features, THETA, EPS, DIM).flip(1)
    torch.testing.assert_close(ours(net, embedding, features), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.3


def small(tmp_path, scaled):
    """A head of ours for the letters model, and its folder; its weights are bfloat16 numbers."""
    model, ids = letters.plain(), range(0, letters.target().model.vocab, 2)
    net = head(model, ids, features=(0, 1, 1))
    if not scaled:
        net.scale.fill_(1)
    save_head(tmp_path / "ours", net, torch.tensor(ids), "bf16", {"target": "letters"})
    embedding, output = (m.weight.detach() for m in (model.get_input_embeddings(), model.get_output_embeddings()))
    return model, embedding, output, load_head(tmp_path / "ours", embedding, output)


def test_out_and_back_a_head_is_the_same_to_the_bit(tmp_path):
    model, embedding, output, (net, ids) = small(tmp_path, scaled=False)
    with torch.no_grad():  # our folders hold bfloat16 numbers
        model.get_output_embeddings().weight.copy_(output.bfloat16())
    net, ids = load_head(tmp_path / "ours", embedding, output)
    export_head(tmp_path / "ours", tmp_path / "theirs", model, "letters")
    import_head(tmp_path / "theirs", tmp_path / "back")
    back, same = load_head(tmp_path / "back", embedding, torch.zeros_like(output))
    assert torch.equal(ids, same)
    assert back.config == EagleConfig(**{**vars(net.config), "own_output": True})
    assert torch.equal(back.output, net.output)
    for name, weight in net.state_dict().items():
        assert torch.equal(weight, back.state_dict()[name]), name
    x = inputs(net.config.hidden)
    assert torch.equal(ours(net, *x), ours(back, *x))


def test_what_is_written_for_others_computes_what_ours_does(tmp_path):
    model, embedding, _, (net, ids) = small(tmp_path, scaled=True)
    assert net.scale.unique().numel() == 3
    export_head(tmp_path / "ours", tmp_path / "theirs", model, "org/letters")
    tensors, said = (
        load_file(tmp_path / "theirs/model.safetensors"),
        json.loads((tmp_path / "theirs/config.json").read_text()),
    )
    x, c = inputs(net.config.hidden), net.config
    found = eagle3(tensors, "layers.0.", *x, c.rope_theta, c.eps, c.head_dim)
    torch.testing.assert_close(found, ours(net, *x), rtol=1e-4, atol=1e-4)
    assert (torch.arange(len(ids)) + tensors["d2t"]).tolist() == ids.tolist() == tensors["t2d"].nonzero()[:, 0].tolist()
    assert torch.equal(tensors["embed_tokens.weight"].float(), embedding)
    assert said["eagle_aux_hidden_state_layer_ids"] == [1, 2, 2], "layers there are counted by who reads, not who gives"
    assert said["speculators_config"]["verifier"]["name_or_path"] == "org/letters"
    assert (said["norm_before_residual"], said["speculators_model_type"]) == (False, "eagle3")
    assert said["transformer_layer_config"]["head_dim"] == c.head_dim


def test_an_imported_head_drafts_and_the_text_stays_the_same(tmp_path):
    model, *_ = small(tmp_path, scaled=True)
    export_head(tmp_path / "ours", tmp_path / "theirs", model, "letters")
    import_head(tmp_path / "theirs", tmp_path / "back", "int8")
    texts = []
    for drafter in ("none", str(tmp_path / "back")):
        with NativeEngine(letters.target(), drafter, verify="coupled", depth=3) as engine:
            texts.append(engine.generate("abcab", Sampling(0.9, seed=4), max_tokens=16)[0].token_ids)
            drafted = engine.stats["drafted"]
            assert not engine.stats["failures"]
    assert texts[0] == texts[1]
    assert drafted > 5


def test_the_command_takes_both_directions_and_leaves_models_to_others(tmp_path, monkeypatch):
    model, *_ = small(tmp_path, scaled=False)
    monkeypatch.setattr(exchange, "resolve", lambda name: name)
    monkeypatch.setattr(exchange, "load_model", lambda found, dtype: model)
    convert(str(tmp_path / "ours"), tmp_path / "theirs")
    assert is_published(tmp_path / "theirs")
    convert(str(tmp_path / "theirs"), tmp_path / "back")
    assert trained_kind(tmp_path / "back") == "eagle"
    with pytest.raises(ValueError, match="not an empty folder"):
        convert_head(str(tmp_path / "ours"), tmp_path / "theirs")
    assert convert_head("smollm2-135m", tmp_path / "model") is None
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": ("midlayer.hidden_norm.weight",)}, "EAGLE-1 or EAGLE-2"),
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"speculators_model_type": "eagle3"}, "norm_before_residual"),  # silent on it: vLLM takes that for yes
        ({"num_hidden_layers": 2}, "more than one layer"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "positions are scaled"),
        ({"hidden_act": "gelu"}, "not silu"),
        ({"eagle_aux_hidden_state_layer_ids": None}, r"\[2, n // 2, n - 3\]"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4]}, r"fc.weight .* \[16, 48\]; .* \[16, 32\]"),
        ({"num_key_value_heads": 4}, "k_proj.weight"),
        ({"drop": ("norm.weight",)}, "norm.weight"),
        ({"drop": ("lm_head.weight",)}, "lm_head.weight"),
        ({"draft_vocab_size": 4}, "4 different token ids"),
        ({"hidden_size": None}, "lacks hidden_size"),
    ],
)
def test_what_is_not_the_same_network_is_refused_by_name(tmp_path, change, message):
    published(tmp_path / "theirs", **change)
    with pytest.raises(ValueError, match=message):
        convert_head(str(tmp_path / "theirs"), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_pickles_leftovers_and_other_counts_of_layers_are_refused(tmp_path):
    folder = tmp_path / "theirs"
    tensors = published(folder)
    save_file({**tensors, "midlayer.self_attn.q_norm.weight": torch.ones(DIM)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"q_norm\.weight, which has no place"):
        import_head(folder, tmp_path / "ours")
    save_file({**tensors, "t2d": ~tensors["t2d"]}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="different draft vocabularies"):
        import_head(folder, tmp_path / "ours")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model.bin is pickled"):
        import_head(folder, tmp_path / "ours")
    model = letters.plain()
    save_head(tmp_path / "two", head(model, DRAFT, features=(0, 1)), torch.tensor(DRAFT))
    with pytest.raises(ValueError, match="fuse 3 layers of the target; this one fuses 2"):
        export_head(tmp_path / "two", tmp_path / "out", model, "letters")


def test_a_first_generation_head_is_known_by_its_tensors(tmp_path):
    published(tmp_path / "theirs", drop=("midlayer.hidden_norm.weight",), architectures=["LlamaForCausalLM"])
    with pytest.raises(ValueError, match="EAGLE-1 or EAGLE-2"):
        convert_head(str(tmp_path / "theirs"), tmp_path / "ours")
