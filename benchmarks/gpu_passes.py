"""Passes and cycles of an 8B-shaped model against the price of its bytes, and what weights in eight bits do to laws."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch
from gpu_common import timed

from slipstream.bench.measure.agreement import compare_laws, laws
from slipstream.bench.workloads import load_workloads
from slipstream.core.device import DraftSize, GraphKey
from slipstream.core.verify.token import Token
from slipstream.drafters.device.draft_model import DraftModelState
from slipstream.engines.native.build import build_target
from slipstream.engines.native.captured.chain_cycle import ChainCycle
from slipstream.models.cache.packing import RowEntries, RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.gpu.decoder import GpuDecoder
from slipstream.models.run.gpu.modules import record
from slipstream.models.run.gpu.pass_sizes import parts_of
from slipstream.models.run.gpu.passes import GpuPasses
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.weights.int8_linear import round_linears

BIG = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
}
SMALLER = {  # shapes of models of other sizes, of which the default model and a pair of one family are
    "135M": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152}
    | {"num_attention_heads": 9, "num_key_value_heads": 3},
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151936}
    | {"num_attention_heads": 14, "num_key_value_heads": 2},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "vocab_size": 151936}
    | {"num_attention_heads": 12, "num_key_value_heads": 2},
}
CONTEXT = 512


def passes(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """One pass of an 8B-shaped model, and of smaller ones, against reading its weights once."""
    model = _big()
    read = _read(model)
    limit = read / results["bandwidth"] * 1000
    told: dict[str, Any] = {"bytes": read, "limit_ms": limit, "transformers_ms": _eager(model)}
    for weights in (None, "int8", "fp8"):
        if weights:
            model = _big()
            assert round_linears(model, weights), "nothing was rounded"
        decoder = TorchModel(model).decoder
        assert isinstance(decoder, GpuDecoder), "its layers are run by its own modules"
        for name, rows, tokens in (("1", 1, 1), ("8", 1, 8), ("16 rows x 6", 16, 6))[: 2 if weights else 3]:
            ms = _pass(decoder, rows, tokens)
            told[f"{name}, {weights}" if weights else name] = {"ms": ms, "of_limit": ms / limit}
        del model, decoder
        torch.cuda.empty_cache()
    for size, shape in SMALLER.items():
        decoder = TorchModel(model := _big(**shape)).decoder
        limit, ms = _read(model) / results["bandwidth"] * 1000, _pass(decoder, 1, 1)
        told[size] = {"limit_ms": limit, "ms": ms, "of_limit": ms / limit}
    return told


def _read(model: Any) -> int:
    """Bytes that a pass over few tokens reads: all weights but the embeddings."""
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    return int(total - model.get_input_embeddings().weight.nbytes)


def _big(**more: Any) -> Any:
    """An 8B-shaped model of random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**{**BIG, **more}, tie_word_embeddings=False))
    torch.set_default_dtype(torch.float32)
    return model


def _pass(decoder: GpuPasses, rows: int, tokens: int) -> float:
    cache = KVCache(1024 * max(16, rows))
    lines = [RowEntries.of(cache.take(1024), CONTEXT, range(tokens)) for _ in range(rows)]
    kept = torch.arange(rows * tokens, device="cuda")
    with torch.inference_mode():
        for _ in range(2):  # what is met again is captured
            decoder.forward(cache, [RowSlice(line) for line in lines], (0, decoder.layers), None, (), kept)
        (run,) = decoder._graphs.values()
        return timed(run._replay, 20)


def widths(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """Passes of 16 to 64 tokens with our products and with the library's: what `GpuNetwork.own_tokens` is made from."""
    told: dict[str, Any] = {}
    for name, shape in (SMALLER | {"8B": {}}).items():
        decoder = TorchModel(_big(**shape)).decoder
        assert isinstance(decoder, GpuDecoder), "its layers are run by its own modules"
        for rows, tokens in ((16, 1), (20, 1), (8, 4), (32, 1), (8, 6), (48, 1), (64, 1)):
            own = told[f"{name}, {rows} x {tokens}"] = {}
            for way, most in (("ours", 64), ("library", 16)):
                vars(decoder.net)["own_tokens"] = most  # as if it had been computed
                decoder._graphs.clear()
                own[way] = _pass(decoder, rows, tokens)
            print(f"{name}, {rows} x {tokens}: {own}", flush=True)
        del decoder
        torch.cuda.empty_cache()
    return told


def rounded(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """Laws of weights in eight bits against bfloat16: agreement on the likeliest token, KL, perplexity."""
    truth, ids, told = None, list[int](), dict[str, Any]()
    for dtype in ("bfloat16", "int8", "fp8"):
        target = build_target(asked.model, dtype=dtype)
        assert isinstance(target.model.decoder, GpuDecoder), "its layers are run by its own modules"
        if not ids:
            text = "\n\n".join(item.turns[0] for item in load_workloads("summary")[0].items)
            ids = target.text.encode(text, raw=True)[:1024]
        found_laws = laws(target.model, ids)
        truth = found_laws if truth is None else truth
        told[dtype] = {"label": target.label, **compare_laws(found_laws, truth, ids)}
    return told


def _eager(model: Any) -> float:
    """transformers' own forward of one token after a context, milliseconds."""
    from transformers import DynamicCache

    cache = DynamicCache()
    with torch.inference_mode():
        model(torch.zeros(1, CONTEXT, dtype=torch.long, device="cuda"), past_key_values=cache, use_cache=True)
        token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
        return timed(lambda: model(token, past_key_values=cache, use_cache=True), 5)


def cycle(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """A whole cycle of depth 5 with a draft model of two of the target's own layers, against the sum of its passes."""
    target, draft = TorchModel(_big()), TorchModel(_big(num_hidden_layers=2))
    sides = []
    for model in (target, draft):
        assert isinstance(model.decoder, GpuPasses)
        cache = KVCache(4096)
        cache.take(CONTEXT + 16)
        sides.append((model.decoder, model.decoder.held(cache)))
    (passes_, held), (partner, partner_held) = sides
    ids = torch.arange(partner.vocab, device="cuda")
    told: dict[str, Any] = {}
    for depth in (3, 6):
        assert Token.device_rule is not None
        key = GraphKey(1, DraftSize(depth), Token.device_rule, parts_of(CONTEXT))
        whole = ChainCycle(key, passes_, held, DraftModelState(partner, partner_held, ids, ids))
        control = [[1], [CONTEXT], [depth], [0], [0], [5], [0], [0], [6], [1 << 20], [depth]]
        numbers = [[1.0], [0.0], [0.0], [1.0], [0.0]]
        both = timed(partial(_from_the_start, whole, control, numbers))
        parts = {n: _pass(partner, 1, n) for n in (1, 2)} | {depth + 1: _pass(passes_, 1, depth + 1)}
        total = parts[2] + (depth - 1) * parts[1] + parts[depth + 1]
        told[f"depth {depth}"] = {"cycle_ms": both, "passes_ms": total, "ratio": both / total}
    return told


def _from_the_start(whole: ChainCycle, control: list[list[int]], numbers: list[list[float]]) -> None:
    """One cycle. A cycle leaves the control of the next one, so it is written anew."""
    whole._inputs.load(control, numbers)
    whole.whole.replay()


KINDS = {
    "qwen3": {"head_dim": 128},
    "gemma2": {"head_dim": 128, "sliding_window": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gpt_neox": {"rotary_pct": 0.25},
    "phi3": {"pad_token_id": 0},
    "olmo2": {},
}


def kinds(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """Other architectures of the same size with eight layers: a pass of transformers' own, and ours, captured."""
    from transformers import AutoConfig, AutoModelForCausalLM

    told: dict[str, Any] = {}
    for kind, more in KINDS.items():
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            config = AutoConfig.for_model(kind, **{**BIG, "num_hidden_layers": 8, "vocab_size": 32000, **more})
            model = AutoModelForCausalLM.from_config(config)
        torch.set_default_dtype(torch.float32)
        read = (
            sum(p.numel() * p.element_size() for p in model.parameters()) - model.get_input_embeddings().weight.nbytes
        )
        limit = read / results["bandwidth"] * 1000
        eager, wrapped = _eager(model), TorchModel(model)
        told[kind] = {"limit_ms": limit, "transformers_ms": eager, "way": type(wrapped.decoder).__name__}
        with torch.inference_mode():
            ways = {"": wrapped.decoder, " not compiled": record(model, wrapped.anatomy, range(5))[0]}
        for name, decoder in ways.items():
            told[kind] |= {f"{n} tokens{name}": _pass(decoder, 1, n) for n in (1, 8) if isinstance(decoder, GpuPasses)}
        print(f"{kind}: {told[kind]}", flush=True)
        del model, wrapped, ways, decoder
        torch.cuda.empty_cache()
    return told
