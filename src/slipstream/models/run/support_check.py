"""Checks whether a model can be run exactly. A model that cannot is refused in one sentence before it decodes a token.

There are two checks. `check_config` reads the configuration: state that cannot be rolled back, positions scaled by the
longest row of a batch, biases by distance. `probe` runs a few tokens through the model's own attention and through
ours, and compares which modules called the attention, with which arguments, and the logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from slipstream.core.array_types import Float, Tensor
from slipstream.core.checks import integer
from slipstream.models.cache.packing import RowEntries, RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.attention import NAME, WHOLE, AttentionPass, plug_in, view
from slipstream.models.run.layers import watch

ATTENTION = {"full_attention", "sliding_attention"}
LIMITS = ("max_position_embeddings", "max_target_positions", "n_positions", "max_seq_len", "seq_length")
BATCHWIDE = {"dynamic", "longrope"}
PROBE = 6  # tokens
TOLERANCE = 0.1  # of the logits' size: wide enough for half precision, far below a missing bias or mask


def refuse(model: Any, why: str) -> ValueError:
    return ValueError(f"{model.config.model_type} ({type(model).__name__}) is refused: {why}")


def check_config(model: Any) -> None:
    """Raise ValueError where the configuration alone says that the model cannot be run exactly."""
    config = model.config.get_text_config()
    other = sorted(set(getattr(config, "layer_types", None) or ()) - ATTENTION)
    if getattr(model, "_is_stateful", False) or other:
        layers = f" in layers of kind {', '.join(other)}" if other else ""
        state = "a recurrent state" if "linear_attention" in other or not other else "a state"
        raise refuse(model, f"it has {state}{layers}, which cannot be rolled back after a rejected draft")
    scaled = sorted(set(_rope_types(getattr(config, "rope_parameters", None))) & BATCHWIDE)
    if scaled:
        raise refuse(model, f"its {scaled[0]} position scaling depends on the longest row of a batch")
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        raise refuse(model, "its attention is biased by distance (ALiBi), which the attention interface does not carry")
    weights = list(model.parameters())
    if getattr(model.config, "quantization_config", None) or not all(p.is_floating_point() for p in weights):
        raise refuse(model, "its modules are quantised already; load it dequantised, in a floating-point type")
    devices = sorted({str(p.device) for p in weights})
    if len(devices) != 1 or devices == ["meta"]:
        raise refuse(model, f"its weights lie on {', '.join(devices)}, and must lie on one device")


def _rope_types(value: Any) -> Iterator[str]:
    """Every rope type in a configuration, also where each kind of layer has its own."""
    if isinstance(value, dict):
        if "rope_type" in value:
            yield str(value["rope_type"])
        for inner in value.values():
            yield from _rope_types(inner)


@dataclass(frozen=True)
class ModelAnatomy:
    """The structure of a model, as the probe saw it."""

    layers: Sequence[nn.Module]
    windows: dict[int, int | None]  # by layer; None sees everything
    vocab: int
    as_tuple: bool  # layers return their hidden state first in a tuple
    agreed: bool = False  # kernels and modules were compared before, when a compiled package was written


@dataclass
class ProbeView:
    """Stands in for an `AttentionPass` in the probe, and records the modules that call it."""

    view: AttentionPass
    modules: list[nn.Module] = field(default_factory=list)
    masks: list[Any] = field(default_factory=list)
    others: dict[str, Any] = field(default_factory=dict)

    def notice(self, module: nn.Module, mask: Any, others: dict[str, Any]) -> None:
        self.modules.append(module)
        self.masks.append(mask)
        self.others |= others

    def attend(self, *args: Any) -> Tensor:
        return self.view.attend(*args)


def probe(model: Any) -> ModelAnatomy:
    """Put our attention into the model and record its structure. A refused model gets its own attention back."""
    own = model.config._attn_implementation
    config = model.config.get_text_config()
    count = config.num_hidden_layers
    token = (torch.arange(PROBE, device=model.device)[None] + config.vocab_size // 2) % config.vocab_size
    try:
        expected = None if own == NAME else model(token, use_cache=False)[0][0]
        plug_in(model)
        recorder = ProbeView(_probe_view(count, model.device))
        _call(model, token, recorder, mask=None)
        windows = _windows(model, recorder, count)
        layers = _layers(model, recorder.modules)
        logits, as_tuple = _numbers(model, token, layers, windows)
        if expected is not None and not _close(logits, expected):
            raise refuse(model, "its logits change when its attention is replaced by an equal one")
    except BaseException:
        model.set_attn_implementation(own)
        raise
    return ModelAnatomy(layers, windows, logits.shape[-1], as_tuple)


def _probe_view(count: int, device: torch.device) -> AttentionPass:
    cache = KVCache()
    line = RowEntries.of(cache.take(), 0, list(range(1, PROBE + 1)))
    return view(cache, dict.fromkeys(range(count)), [RowSlice(line)], device)


def _call(model: Any, token: Tensor, context: Any, mask: Tensor | None) -> Float[Tensor, "tokens vocab"]:
    position = torch.arange(PROBE, device=model.device)[None]
    try:
        output = model(token, attention_mask=mask, position_ids=position, use_cache=False, slipstream=context)
    except TypeError as error:
        raise refuse(model, f"its forward does not pass arguments on to the attention interface ({error})") from error
    logits: Tensor = output[0][0]
    return logits


def _windows(model: Any, recorder: ProbeView, count: int) -> dict[int, int | None]:
    """The window of every layer. Refuses a model whose layers do not each call the attention interface once."""
    indices = [getattr(module, "layer_idx", None) for module in recorder.modules]
    if indices != list(range(count)):
        raise refuse(model, f"it bypasses the attention interface: {len(indices)} calls came from its {count} layers")
    if recorder.others.get("position_bias") is not None:
        raise refuse(model, "its attention is biased by position")
    if not all(getattr(mask, "plain", False) for mask in recorder.masks):
        raise refuse(model, "its attention mask is neither causal nor a sliding window")
    return {index: mask.window for index, mask in enumerate(recorder.masks)}


def _layers(model: Any, attentions: Sequence[nn.Module]) -> Sequence[nn.Module]:
    """The list of decoder layers: the one whose i-th element holds the i-th attention."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == len(attentions):
            pairs = zip(module, attentions, strict=True)
            if all(any(part is attention for part in layer.modules()) for layer, attention in pairs):
                return list(module)
    raise refuse(model, "its decoder layers are not in one list")


def _numbers(
    model: Any, token: Tensor, layers: Sequence[nn.Module], windows: dict[int, int | None]
) -> tuple[Tensor, bool]:
    """Logits as our passes will compute them, and whether a layer returns a tuple."""
    context = _probe_view(len(layers), model.device)
    context.windows = windows
    kinds: list[bool] = []
    handle = layers[0].register_forward_hook(lambda _, __, output: kinds.append(isinstance(output, tuple)))
    with handle, watch(layers, [len(layers) - 1]) as outputs:
        logits = _call(model, token, context, WHOLE.to(model.device))
    if outputs[len(layers) - 1].ndim != 2:
        raise refuse(model, "its layers do not return one hidden state per token")
    return logits, kinds[0]


def _close(logits: Tensor, expected: Tensor) -> bool:
    error = (logits.float() - expected.float()).norm()
    return bool(error <= TOLERANCE * expected.float().norm())


def longest_row(model: Any, context: int | None) -> int:
    """The longest row in tokens: the configuration's limit, or `context` if that is lower."""
    config = model.config.get_text_config()
    longest = next((value for name in LIMITS if isinstance(value := getattr(config, name, None), int)), context)
    if longest is None:
        raise refuse(model, "its configuration names no longest context; give one as `context`")
    if context is not None and not 1 <= integer("context", context) <= longest:
        raise ValueError(f"context is {context}; the model takes 1 to {longest}")
    return longest if context is None else context
