"""Imports and exports EAGLE-3 checkpoints in the layout of `speculators` and vLLM.

The network is the same; names, packing and numbering differ in a published checkpoint:

- Query, key and value are separate tensors, as are gate and up.
- It has no scales of the fused layers; an export multiplies ours into `fc`, which is linear.
- A feature layer has the number of the layer that reads the state, one more than our number.
- `d2t` holds the difference between the target's token id and the draft token id.
- A published head has its own output rows, and an import keeps them (`EagleConfig.own_output`).
- EAGLE uses the target's embedding, so an import ignores an embedding in the checkpoint.

An export is exact: a tensor is written as bfloat16 where that loses nothing, and as float32 elsewhere. An import
refuses every setting that our network would compute differently.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from slipstream.core.array_types import Int, Tensor
from slipstream.drafters.eagle.folder import load_head, save_head
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.drafters.files.folder import CONFIG, WEIGHTS, trained_kind
from slipstream.drafters.files.shipped import shipped
from slipstream.models.sources import store
from slipstream.models.sources.catalog import resolve
from slipstream.models.sources.folder import PICKLES, read_json
from slipstream.models.sources.load import load_model

LAYER = "layers.0."
PUBLISHED_NAMES = {  # our tensor -> the published tensors that it concatenates
    "fc.weight": ("fc.weight",),
    "norm_embedding.weight": (LAYER + "input_layernorm.weight",),
    "norm_state.weight": (LAYER + "hidden_norm.weight",),
    "qkv.weight": tuple(f"{LAYER}self_attn.{part}_proj.weight" for part in "qkv"),
    "o.weight": (LAYER + "self_attn.o_proj.weight",),
    "norm_mlp.weight": (LAYER + "post_attention_layernorm.weight",),
    "gate_up.weight": (LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"),
    "down.weight": (LAYER + "mlp.down_proj.weight",),
    "norm.weight": ("norm.weight",),
    "output": ("lm_head.weight",),
}
EMBEDDING, TO_TARGET, IN_DRAFT = "embed_tokens.weight", "d2t", "t2d"
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
FUSED_LAYERS = 3  # layers that vLLM's network fuses
DEPTH = 5  # drafted tokens per cycle that an exported config names as the default


def convert_head(source: str, out: Path) -> Path | None:
    """Write a head in the other layout: one of ours (a folder, or a shipped one by name) for `speculators`, a published
    one as ours. None if the source is not a head."""
    folder = shipped().get(source, Path(source).expanduser())
    own, theirs = trained_kind(folder) == "eagle", is_published(folder)
    if not own and not theirs:
        return None
    out = out.expanduser().absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not an empty folder; name a new one")
    with store.readable_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with store.written_atomically(out) as partial:
            if theirs:
                import_head(folder, partial)
            else:
                name = _target(folder)
                export_head(folder, partial, load_model(resolve(name), "float32"), name)
    return out


def _target(folder: Path) -> str:
    name = read_json(folder / CONFIG).get("target")
    if not name:
        raise ValueError(f"the {CONFIG} of {folder} must name the head's target, as 'target'")
    return str(name)


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published EAGLE head. The configs of early ones look like plain models': `fc` tells."""
    if not (folder / CONFIG).is_file() or trained_kind(folder) is not None:
        return False
    head_config = read_json(folder / CONFIG)
    if "speculators_model_type" in head_config or any(
        "eagle" in str(a).lower() for a in head_config.get("architectures") or ()
    ):
        return True
    if not (folder / WEIGHTS).is_file():
        return False
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            return "fc.weight" in file.keys()  # noqa: SIM118  (no mapping)
    except SafetensorError:
        return False


def export_head(folder: Path, out: Path, target: Any, name: str) -> None:
    """Write one of our heads for `speculators` and vLLM; `name` is the name that they know the target model by."""
    embedding = target.get_input_embeddings().weight.detach().float().cpu()
    net, ids = load_head(folder, embedding, target.get_output_embeddings().weight.detach().float().cpu())
    c = net.config
    if len(c.features) != FUSED_LAYERS:
        raise ValueError(
            f"vLLM reads heads that fuse {FUSED_LAYERS} layers of the target; this one fuses {len(c.features)}"
        )
    own = {**net.state_dict(), "output": net.output}
    own["fc.weight"] = own["fc.weight"] * own.pop("scale").repeat_interleave(c.hidden)
    tensors = {EMBEDDING: embedding}
    for ours, theirs in PUBLISHED_NAMES.items():
        tensors |= dict(zip(theirs, own[ours].split(_rows(c, ours, len(own[ours]))), strict=True))
    tensors = {key: _smallest(value) for key, value in tensors.items()}
    tensors[TO_TARGET] = ids - torch.arange(len(ids))
    tensors[IN_DRAFT] = torch.zeros(len(embedding), dtype=torch.bool).index_fill_(0, ids, True)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / WEIGHTS, {"format": "pt"})
    config = _speculators(c, target, name)
    (out / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def import_head(folder: Path, out: Path, precision: str = "bf16") -> None:
    """Write a published EAGLE-3 head as one of ours."""
    head_config, tensors = read_json(folder / CONFIG), _published(folder)
    if LAYER + "hidden_norm.weight" not in tensors:
        raise ValueError(f"{folder} holds an EAGLE-1 or EAGLE-2 head or none at all; only EAGLE-3 heads are imported")
    own_output = "lm_head.weight" in tensors or TO_TARGET in tensors
    layer = head_config.get("transformer_layer_config", head_config)
    _refuse(folder, head_config, layer)
    tensors.pop(EMBEDDING, None)
    ids, order = _draft_ids(
        folder, tensors, int(head_config.get("draft_vocab_size") or layer.get("vocab_size", 0))
    ).sort()
    config = _config(folder, head_config, layer, len(ids), own_output)
    weights = _assembled(folder, config, tensors)
    if own_output:
        weights["output"] = weights["output"][order]
    net = EagleNet(config)
    net.load_state_dict({**weights, "scale": torch.ones(len(config.features))}, assign=True)
    target = head_config.get("speculators_config", {}).get("verifier", {}).get("name_or_path")
    save_head(out, net, ids, precision, {"target": target, "imported": "EAGLE-3"})


def _rows(c: EagleConfig, name: str, rows: int) -> list[int]:
    """The rows of each published tensor that one of ours concatenates."""
    kv = c.kv_heads * c.head_dim
    return {"qkv.weight": [c.heads * c.head_dim, kv, kv], "gate_up.weight": [c.intermediate] * 2}.get(name, [rows])


def _smallest(weight: Tensor) -> Tensor:
    """The tensor in bfloat16 where that is exact."""
    half = weight.bfloat16()
    return (half if torch.equal(half.float(), weight) else weight).contiguous()


def _speculators(c: EagleConfig, target: Any, name: str) -> dict[str, Any]:
    """The `config.json` of an exported head."""
    theirs = target.config.get_text_config()
    layer = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": target.get_input_embeddings().weight.shape[0],
        "hidden_size": c.hidden,
        "intermediate_size": c.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": theirs.max_position_embeddings,
        "rms_norm_eps": c.eps,
        "rope_theta": c.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    greedy = {"proposal_type": "greedy", "speculative_tokens": DEPTH, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculators",
        "speculators_model_type": "eagle3",
        "draft_vocab_size": c.draft_vocab,
        LAYER_IDS: [layer + 1 for layer in c.features],
        "norm_before_residual": False,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"name_or_path": name, "architectures": list(target.config.architectures or ())},
        },
    }


def _published(folder: Path) -> dict[str, Tensor]:
    """All tensors, under the names that `speculators` gives them."""
    files = sorted(folder.glob("*.safetensors"))
    pickled = [path.name for kind in PICKLES for path in sorted(folder.glob(kind))]
    if not files:
        why = f"{pickled[0]} is pickled, and only safetensors are loaded" if pickled else "there is no safetensors file"
        raise ValueError(f"cannot import the head in {folder}: {why}")
    try:
        tensors = {name: tensor for path in files for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise ValueError(f"{folder} holds a malformed file: {error}") from error
    return {name.removeprefix("model.").replace("midlayer.", LAYER): tensor for name, tensor in tensors.items()}


def _refuse(folder: Path, head_config: dict[str, Any], layer: dict[str, Any]) -> None:
    """Raise ValueError for settings that our network would compute differently. Like vLLM, treat a missing
    `norm_before_residual` in a folder of `speculators` as true."""
    rope = layer.get("rope_scaling") or layer.get("rope_parameters") or {}
    reasons = {
        "norm_before_residual is true": head_config.get(
            "norm_before_residual", "speculators_model_type" in head_config
        ),
        "it is no eagle3 head": head_config.get("speculators_model_type", "eagle3") != "eagle3",
        "it has more than one layer": layer.get("num_hidden_layers", 1) != 1,
        "its activation is not silu": layer.get("hidden_act", "silu") != "silu",
        "its positions are scaled": rope.get("rope_type", rope.get("type", "default")) != "default",
        "its attention has a window": "sliding_attention" in (layer.get("layer_types") or ()),
        "it norms what it fuses or gives on": any(
            head_config.get(k) for k in ("norm_before_fc", "fc_norm", "norm_output")
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"cannot import the head in {folder}: {reason}, which the eagle network does not compute")


def _config(
    folder: Path, head_config: dict[str, Any], layer: dict[str, Any], draft_vocab: int, own_output: bool
) -> EagleConfig:
    layer_ids = head_config.get(LAYER_IDS) or (head_config.get("eagle_config") or {}).get(LAYER_IDS)
    if not layer_ids or min(layer_ids) < 1:
        raise ValueError(
            f"the {CONFIG} of {folder} must say which layers of the target feed the head, as {LAYER_IDS!r}: "
            "numbers from 1; for a target of n layers EAGLE-3 itself takes [2, n // 2, n - 3]"
        )
    rope = layer.get("rope_parameters") or {}
    try:
        hidden, heads = layer["hidden_size"], layer["num_attention_heads"]
        return EagleConfig(
            hidden=hidden,
            heads=heads,
            kv_heads=layer.get("num_key_value_heads") or heads,
            head_dim=layer.get("head_dim") or hidden // heads,
            intermediate=layer["intermediate_size"],
            features=tuple(number - 1 for number in layer_ids),
            draft_vocab=draft_vocab,
            rope_theta=float(layer.get("rope_theta") or rope.get("rope_theta") or 10000.0),
            eps=layer.get("rms_norm_eps", 1e-6),
            own_output=own_output,
        )
    except KeyError as error:
        raise ValueError(f"the {CONFIG} of {folder} lacks {error.args[0]}") from error


def _draft_ids(folder: Path, tensors: dict[str, Tensor], count: int) -> Int[Tensor, " draft_vocab"]:
    """The target's id of each draft token, in the order of the output rows."""
    offset, in_draft = tensors.pop(TO_TARGET, None), tensors.pop(IN_DRAFT, None)
    ids = torch.arange(count) if offset is None else torch.arange(len(offset)) + offset.long()
    different = len({i for i in ids.tolist() if i >= 0})
    if not len(ids) == different == count:
        raise ValueError(f"{TO_TARGET} in {folder} must give {count} different token ids; it gives {different}")
    if in_draft is not None and not torch.equal(in_draft.nonzero()[:, 0], ids.sort().values):
        raise ValueError(f"{TO_TARGET} and {IN_DRAFT} in {folder} speak of different draft vocabularies")
    return ids


def _assembled(folder: Path, config: EagleConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors from the published ones. Wrong shapes and unknown tensors raise ValueError."""
    with torch.device("meta"):
        wanted = {
            name: weight.shape for name, weight in EagleNet(config).state_dict().items() if name in PUBLISHED_NAMES
        }
    weights = {}
    for ours, shape in wanted.items():
        parts = []
        for theirs, rows in zip(PUBLISHED_NAMES[ours], _rows(config, ours, shape[0]), strict=True):
            part = tensors.pop(theirs, torch.zeros(0))
            if part.shape != (rows, *shape[1:]):
                size, asked = list(part.shape), [rows, *shape[1:]]
                raise ValueError(f"{theirs} in {folder} is of shape {size}; its {CONFIG} asks for {asked}")
            parts.append(part.float())
        weights[ours] = torch.cat(parts)
    if tensors:
        raise ValueError(f"{folder} holds {sorted(tensors)[0]}, which has no place in an EAGLE-3 head of one layer")
    return weights
