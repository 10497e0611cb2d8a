"""The contract of a model on Hugging Face architectures: after any history of prefill, score, partial commit and
rollback, the logits of every slot are those of the model's own plain forward over the text that leads there."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, T5Config, T5ForConditionalGeneration

from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Origin, Request, Row, Scores, Verdict
from slipstream.models import cache as cache_module
from slipstream.models.torch_model import TorchModel

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

    def cycle(self, counts: list[int], branching: float) -> None:
        draft = self.draft(counts, branching)
        self.check(draft, self.model.score(self.rows, draft))
        self.commit(draft, self.verdict(draft))
        self.model.check_integrity()

    def check(self, draft: Draft, scores: Scores) -> None:
        logits, hidden = reference(self.plain, self.rows, draft, self.model.features)
        torch.testing.assert_close(scores.logits, logits, rtol=1e-4, atol=2e-4)
        assert set(scores.features) == set(self.model.features)
        for layer, state in scores.features.items():
            torch.testing.assert_close(state, hidden[layer], rtol=1e-4, atol=2e-4)


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


everyone = pytest.mark.parametrize("kind", ARCHITECTURES)


@everyone
def test_one_row_chains_and_trees(kind: str) -> None:
    bench = Bench.of(kind, features=(0, 2), prefill_chunk=7)
    bench.join(17)
    for count, branching in [(0, 0), (3, 0), (6, 0.7), (1, 0), (8, 0.5), (0, 0), (12, 0.9), (4, 0)]:
        bench.cycle([count], branching)


@everyone
def test_ragged_rows_that_come_and_go(kind: str) -> None:
    bench = Bench.of(kind, seed=1, features=(1,))
    bench.join(3, 11, 1)
    bench.cycle([2, 0, 4], 0)
    bench.cycle([3, 5, 2], 0.8)
    bench.leave(1)
    bench.cycle([1, 1], 0)
    bench.join(9, 2)
    bench.cycle([0, 0, 0, 0], 0)
    bench.cycle([2, 4, 1, 3], 0.6)


@everyone
def test_stop_at_a_layer_and_resume(kind: str) -> None:
    """A draft grown node by node on the first layers alone, then scored from there; and again for the next cycle."""
    bench = Bench.of(kind, seed=2, features=(0, 1))
    bench.join(5, 12)
    for branching in (0.0, 0.7):
        draft = bench.draft([3, 4], branching)
        for size in (0, 1, 4):
            part = first(draft, size)
            expected = reference(bench.plain, bench.rows, part, (1,))[1][1]
            torch.testing.assert_close(bench.model.peek(bench.rows, part, 2), expected, rtol=1e-4, atol=2e-4)
        bench.check(draft, bench.model.score(bench.rows, draft))
        bench.commit(draft, bench.verdict(draft))
        bench.model.check_integrity()


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "mixtral"])
def test_a_draft_model_steps_and_catches_up(kind: str) -> None:
    """Peeking at all layers and applying the head is scoring, one token at a time; what never ran is read later."""
    bench = Bench.of(kind, seed=3)
    bench.join(5, 9)
    for _ in range(4):
        chain = bench.draft([3, 2], 0)
        part = make(2, [0, 0, 1], [-1, 0, -1], [int(chain.token[i]) for i in (0, 1, 3)])
        for draft in (make(2, [], [], []), part):
            hidden = bench.model.peek(bench.rows, draft, bench.model.layers)
            logits, _ = reference(bench.plain, bench.rows, draft)
            torch.testing.assert_close(bench.model.logits(hidden), logits, rtol=1e-4, atol=2e-4)
        verdict = bench.verdict(chain)
        bench.model.commit(bench.rows, verdict, chain)
        extend(bench.rows, chain, verdict)
        bench.model.check_integrity()
    bench.cycle([2, 2], 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@everyone
def test_on_the_gpu(kind: str) -> None:
    bench = Bench.of(kind, seed=8, device="cuda", features=(1,), prefill_chunk=7)
    bench.join(17, 3)
    for counts, branching in [([0, 0], 0), ([3, 5], 0), ([6, 4], 0.7)]:
        bench.cycle(counts, branching)
    bench.model.peek(bench.rows, bench.draft([1, 1], 0), 2)
    bench.cycle([2, 2], 0)


def test_random_histories() -> None:
    bench = Bench.of("mistral", seed=4, prefill_chunk=5)
    bench.join(20)
    for _ in range(30):
        choice = bench.rng.random()
        if choice < 0.15 and len(bench.rows) < 5:
            bench.join(bench.rng.randrange(1, 20))
        elif choice < 0.25 and len(bench.rows) > 1:
            bench.leave(bench.rng.randrange(len(bench.rows)))
        elif choice < 0.4:
            bench.model.prefill(bench.rows, bench.rng.randrange(1, 6))
        elif choice < 0.5:  # scored, and never committed
            bench.model.score(bench.rows, bench.draft([bench.rng.randrange(4) for _ in bench.rows], 0.5))
        else:
            bench.cycle([bench.rng.randrange(6) for _ in bench.rows], bench.rng.choice([0, 0.6]))


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_growth_across_buckets(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "SMALLEST", 2)
    bench = Bench.of(kind, seed=5, prefill_chunk=40)
    bench.join(3)
    bench.cycle([2], 0)
    bench.join(70, 2, 1)
    for _ in range(3):
        bench.cycle([4, 3, 0, 2], 0.5)


def test_rows_far_apart_are_gathered() -> None:
    bench = Bench.of("llama", seed=6)
    bench.join(*range(1, 9))
    bench.cycle([0] * 8, 0)
    for _ in range(6):
        bench.leave(1)
    bench.cycle([3, 2], 0.5)


def test_trees_deeper_than_the_window() -> None:
    """Windows reckon in positions: a cousin's place does not push a grandparent out of sight."""
    bench = Bench.of("mistral", seed=7, config={"sliding_window": 3})
    bench.join(6, 2)
    for _ in range(3):
        bench.cycle([12, 9], 0.3)


def test_prefill_leaves_the_last_token() -> None:
    bench = Bench.of("llama")
    bench.join(10, 1, 4)
    assert bench.model.prefill(bench.rows, 6) == [6, 0, 3]
    assert bench.model.prefill(bench.rows, 6) == [3, 0, 0]
    assert bench.model.prefill(bench.rows, 6) == [0, 0, 0]
    bench.cycle([2, 2, 0], 0)


def test_a_shortened_row_rolls_back() -> None:
    bench = Bench.of("mistral")
    bench.join(30)
    bench.cycle([4], 0)
    del bench.rows[0].tokens[21:]
    bench.cycle([3], 0)


def test_a_changed_draft_is_not_resumed() -> None:
    bench = Bench.of("llama")
    bench.join(4)
    bench.model.peek(bench.rows, make(1, [0, 0], [-1, 0], [5, 6]), 1)
    draft = make(1, [0, 0, 0], [-1, 0, 0], [5, 7, 6])
    bench.check(draft, bench.model.score(bench.rows, draft))


def test_two_wrappers_share_one_model() -> None:
    plain = build("llama")
    shared = copy.deepcopy(plain)
    first, second = (Bench(plain, TorchModel(shared), random.Random(seed)) for seed in (0, 1))
    for bench in (first, second):
        bench.join(6)
    for _ in range(3):
        for bench in (first, second):
            bench.cycle([3], 0.5)


def test_declarations() -> None:
    model = TorchModel(build("gpt2"), context=50)
    assert (model.vocab, model.context, model.layers, model.dtype) == (VOCAB, 50, 3, torch.float32)
    assert TorchModel(build("llama")).context == CONTEXT


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"features": (3,)}, "features names layer 3; the model has layers 0 to 2"),
        ({"context": 201}, "context is 201; the model takes 1 to 200"),
        ({"prefill_chunk": 0}, "prefill_chunk is 0; it must be 1 or more"),
    ],
)
def test_bad_options(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TorchModel(build("llama"), **options)


@pytest.mark.parametrize(
    ("kind", "more", "sentence"),
    [
        ("mamba", {}, "cannot be rolled back"),
        ("rwkv", {"attention_hidden_size": 32}, "cannot be rolled back"),
        ("qwen3_next", {"num_experts": 2}, "layers of kind linear_attention"),
        ("llama4_text", {}, "layers of kind chunked_attention"),
        ("bloom", {"n_head": 4}, "ALiBi"),
        ("falcon", {"alibi": True}, "ALiBi"),
        ("falcon", {}, "bypasses the attention interface"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic position"),
    ],
)
def test_refusals(kind: str, more: dict[str, Any], sentence: str) -> None:
    model = build(kind, **more)
    own = model.config._attn_implementation
    with pytest.raises(ValueError, match=f"^{kind} .* is refused: .*{sentence}"):
        TorchModel(model)
    assert model.config._attn_implementation == own


def test_refuses_an_encoder_decoder() -> None:
    config = T5Config(vocab_size=VOCAB, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match=r"^t5 .* is refused: it is an encoder-decoder"):
        TorchModel(T5ForConditionalGeneration(config))


def test_refuses_quantised_weights() -> None:
    model = build("llama")
    weight = model.model.layers[0].mlp.up_proj.weight
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match="quantised already"):
        TorchModel(model)


def test_refuses_an_attention_it_cannot_reproduce() -> None:
    """A model that adds something of its own when it runs eagerly is caught by its numbers."""
    model = build("llama")
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def doubled(*args: Any, **kwargs: Any) -> Any:
        out, weights = forward(*args, **kwargs)
        return (out * 3 if model.config._attn_implementation == "eager" else out), weights

    attention.forward = doubled
    with pytest.raises(ValueError, match="its logits change"):
        TorchModel(model)


def test_the_wrapped_model_says_so() -> None:
    model = build("llama")
    TorchModel(model)
    with pytest.raises(RuntimeError, match="wrapped by slipstream"):
        model(torch.tensor([[1, 2]]))
    model.set_attn_implementation("sdpa")
    assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, VOCAB)
