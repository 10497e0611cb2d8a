"""Tiny models of many architectures, each wrapped beside an untouched copy, and histories to put them through."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from grids import quantise
from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Origin, Request, Row, Scores, Verdict
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.weights.linears import pack_linears

VOCAB, CONTEXT = 97, 200
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOWED = {"sliding_window": 8}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {"head_dim": 12},
    "mistral": WINDOWED,
    "gemma2": WINDOWED | {"head_dim": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    "gemma3_text": WINDOWED | {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt2": {},
    "gpt_neox": {"rotary_pct": 0.5},
    "phi3": WINDOWED,
    "olmo2": {},
    "granite": {"logits_scaling": 3.0, "attention_multiplier": 0.4, "embedding_multiplier": 2.0},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8},
    "gpt_oss": WINDOWED
    | {"head_dim": 8, "num_local_experts": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "cohere2": WINDOWED | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
}
LAYERS = {"gemma3_text": 4}
WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


def build(kind: str, **more: Any) -> Any:
    """A tiny model whose weights are large enough for attention to matter."""
    layers = LAYERS.get(kind, 3)
    config = AutoConfig.for_model(
        kind, **{**COMMON, "num_hidden_layers": layers, **ARCHITECTURES.get(kind, {}), **more}
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 or "sinks" in name:
                weight.normal_(0, 0.3)
            elif "bias" in name:
                weight.normal_(0, 0.1)
    return model


@dataclass
class Bench:
    """A wrapped model beside an untouched copy of it."""

    plain: Any
    model: TorchModel
    rng: random.Random
    rows: list[Row] = field(default_factory=list)

    @staticmethod
    def of(
        kind: str, seed: int = 0, config: dict[str, Any] | None = None, device: str = "cpu", **options: Any
    ) -> Bench:
        plain = build(kind, **(config or {})).to(device)
        return Bench(plain, TorchModel(copy.deepcopy(plain), **options), random.Random(seed))

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCAB) for _ in range(count)]

    def join(self, *lengths: int) -> None:
        new = [Row(Request(self.tokens(length), max_tokens=1000)) for length in lengths]
        self.model.open(new)
        self.rows += new

    def leave(self, number: int) -> None:
        self.model.close([self.rows.pop(number)])

    def draft(self, counts: list[int], branching: float) -> Draft:
        """Random trees, the nodes of all rows interleaved; branching 0 gives chains."""
        owners = [r for r, count in enumerate(counts) for _ in range(count)]
        if branching:
            self.rng.shuffle(owners)
        parents: list[int] = []
        for i, r in enumerate(owners):
            mine = [j for j in range(i) if owners[j] == r]
            free = self.rng.random() < branching
            parents.append(self.rng.choice([-1, *mine]) if free else mine[-1] if mine else -1)
        return make(len(counts), owners, parents, self.tokens(len(owners)))

    def verdict(self, draft: Draft) -> Verdict:
        """A random path from each row's end, as long as chance has it."""
        paths: list[list[int]] = []
        for r in range(draft.tree.rows):
            path: list[int] = []
            while self.rng.random() < 0.75:
                end = path[-1] if path else -1
                children = [i for i, node in enumerate(draft.tree.lists) if node == (r, end)]
                if not children:
                    break
                path.append(self.rng.choice(children))
            paths.append(path)
        width = max(map(len, paths), default=0)
        table = torch.tensor([path + [-1] * (width - len(path)) for path in paths]).reshape(len(paths), width)
        count = len(paths)
        return Verdict(table.long(), torch.tensor(self.tokens(count)), torch.zeros(count, dtype=torch.bool))

    def commit(self, draft: Draft, verdict: Verdict) -> None:
        self.model.commit(self.rows, verdict)
        extend(self.rows, draft, verdict)

    def cycle(self, counts: list[int], branching: float) -> float:
        """Draft, score and commit; how far the scores are from the plain model's."""
        draft = self.draft(counts, branching)
        off = self.off(draft, self.model.score(self.rows, draft))
        self.commit(draft, self.verdict(draft))
        self.model.check_integrity()
        return off

    def off(self, draft: Draft, scores: Scores) -> float:
        """How far logits and features are from those of the plain model; at most `ROUNDING` where they are right."""
        logits, hidden = reference(self.plain, self.rows, draft, self.model.features)
        assert set(scores.features) == set(self.model.features)
        states = (apart(state, hidden[layer]) for layer, state in scores.features.items())
        return max(apart(scores.logits, logits), *states, 0.0)


ROUNDING = 1.0


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, in units of what another order of sums may make of it."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    share = (found - expected).abs() / (2e-4 + 1e-4 * expected.abs())
    assert not share.isnan().any(), "not a number"
    return float(share.max()) if share.numel() else 0.0


def make(rows: int, row: list[int], parent: list[int], token: list[int]) -> Draft:
    tokens = torch.tensor(token, dtype=torch.long)
    return Draft(Tree.of(rows, row, parent), tokens, OneHot(tokens, VOCAB))


def first(draft: Draft, size: int) -> Draft:
    """The draft as it was when only so many of its nodes were drawn."""
    lists = draft.tree.lists[:size]
    return make(draft.tree.rows, [r for r, _ in lists], [p for _, p in lists], draft.token[:size].tolist())


def extend(rows: list[Row], draft: Draft, verdict: Verdict) -> None:
    for row, path, last in zip(rows, verdict.path.tolist(), verdict.token.tolist(), strict=True):
        emitted = [*(int(draft.token[i]) for i in path if i >= 0), last]
        row.extend(emitted, [Origin.ACCEPTED] * len(emitted), CONTEXT)


@torch.no_grad()
def reference(
    plain: Any, rows: list[Row], draft: Draft, features: tuple[int, ...] = ()
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Logits and layer outputs at every slot: the whole text of every path through the untouched model, no cache.
    Texts are padded on the right, where no token looks."""
    paths: list[tuple[list[int], int]] = [([], r) for r in range(len(rows))]
    paths += [(path, draft.tree.lists[path[0]][0]) for path in draft.tree.paths]
    texts = [torch.tensor(rows[r].tokens + [int(draft.token[i]) for i in path]) for path, r in paths]
    layers, hidden = decoder_layers(plain), {}

    def keep(layer: int) -> Any:
        return lambda _, __, out: hidden.update({layer: out[0] if isinstance(out, tuple) else out})

    handles = [layers[layer].register_forward_hook(keep(layer)) for layer in features]
    batch = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True).to(plain.device)
    logits = plain(batch, use_cache=False).logits
    for handle in handles:
        handle.remove()
    found: dict[int, tuple[int, int]] = {}
    for n, (path, r) in enumerate(paths):
        for k, slot in enumerate([r, *(len(rows) + i for i in path)]):
            found[slot] = n, rows[r].length - 1 + k
    text, place = zip(*(found[slot] for slot in range(len(rows) + len(draft.tree))), strict=True)
    return logits[text, place], {layer: state[text, place] for layer, state in hidden.items()}


def decoder_layers(model: Any) -> Any:
    count = model.config.num_hidden_layers
    return next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count)


def build_packed(kind: str, integers: bool, **more: int) -> Any:
    """A tiny model whose linear layers the kernels run."""
    model = build(kind, **{**WIDE, **({"head_dim": 16} if kind == "qwen3" else {}), **more})
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    model = quantise(model) if integers else model
    pack_linears(model, integers)
    return model
