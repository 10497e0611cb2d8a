"""Whole cycles on the device equal the batch's own cycles, token for token: on a GPU, or under Triton's interpreter."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from blocks import dflash
from heads import eagle
from slipstream.core.interfaces import Policy
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Budget, Request
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.early_exit import EarlyExit
from slipstream.drafters.exit_head.head import ExitHead
from slipstream.drafters.exit_head.network import ExitConfig, ExitNet
from slipstream.drafters.ngram import NGram
from slipstream.drafters.none import NoDrafter
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.captured.chain_cycle import ChainCycle
from slipstream.engines.native.captured.runner import CapturedRunner
from slipstream.engines.native.scheduler import Limits
from slipstream.kernels.gpu import sample as draw
from slipstream.models.run.decoder_choice import agrees
from slipstream.models.run.gpu import pass_sizes
from slipstream.models.run.gpu.decoder import GpuDecoder
from slipstream.models.run.gpu.modules import record
from slipstream.models.run.gpu.passes import GpuPasses
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.config import AdaptiveConfig
from slipstream.plan.policy.policies import Adaptive, Fixed
from state_heads import drafter_for
from tiny import VOCAB, build

SHALLOW = AdaptiveConfig(max_depth=4)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPTS = ((3, 6), (12, 4)) if DEVICE == "cpu" else ((3, 9), (30, 34), (9, 22))
LAYERS = {"num_hidden_layers": 2} if DEVICE == "cpu" else {}  # the interpreter is slow
IDS = sorted(random.Random(3).sample(range(VOCAB), 60))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that find nothing to do cost the interpreter as much as others."""
    if DEVICE == "cpu":
        monkeypatch.setattr(pass_sizes, "LEAST", 1)
        monkeypatch.setattr(draw, "BLOCK", 128)


def passes(target: TorchModel, recorded: bool = False) -> GpuPasses:
    """What a GPU would run it by."""
    known = target.anatomy
    if recorded:
        return record(target.model, known, range(5))[0]
    return GpuDecoder(target.model, known.layers, known.windows)


def draft_model(target: TorchModel, fast: bool, ids: list[int] | None) -> DraftModel:
    """The target's first layer, and noise beside it."""
    model = build("llama", num_hidden_layers=1).to(DEVICE)
    model.load_state_dict(target.model.state_dict(), strict=False)
    model.model.layers[0].mlp.down_proj.weight.data *= 1.1
    smaller = TorchModel(model)
    smaller.forward_pass.decoder = passes(smaller) if fast else None
    if ids is None:
        return DraftModel(smaller, VOCAB)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight[ids].detach().clone())
    return draft_of(model, fast, ids)


def draft_of(model: Any, fast: bool, ids: list[int]) -> DraftModel:
    smaller = TorchModel(model)
    smaller.forward_pass.decoder = passes(smaller) if fast else None
    return DraftModel(smaller, VOCAB, torch.tensor(ids, device=DEVICE))


def early_exit(target: TorchModel, window: int) -> EarlyExit:
    """After the first layer: with the target's own output, or with a random head that attends to a window."""
    if not window:
        return EarlyExit(target, 1)
    torch.manual_seed(4)
    output = target.model.get_output_embeddings().weight.detach()
    net = ExitNet(ExitConfig(output.shape[1], 1, 4, 2, 8, 24, len(IDS), window))
    with torch.no_grad():
        for weight in net.parameters():
            weight.normal_(0, 0.3) if weight.ndim > 1 else weight.uniform_(0.5, 1.5)
    target.declare((0,))
    ids = torch.tensor(IDS, device=DEVICE)
    return EarlyExit(target, 1, ExitHead(net.to(output), ids, output[ids], target, VOCAB))


def outputs(
    fast: bool, plan: DecodingPlan, how: Sampling, kind: str = "llama", ids: list[int] | None = IDS
) -> tuple[list[list[int]], int]:
    jobs, cycles = decoded(fast, plan, how, kind, ids)
    return [job.row.output for job in jobs], cycles


def decoded(
    fast: bool,
    plan: DecodingPlan,
    how: Sampling,
    kind: str = "llama",
    ids: list[int] | None = IDS,
    prompt_logprobs: int | None = None,
    policy: Policy | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[Job], int]:
    model = build(kind, **LAYERS).to(DEVICE, dtype)
    target = TorchModel(model)
    target.forward_pass.decoder = passes(target, recorded=kind != "llama") if fast else None
    head = eagle(target, IDS, features=(0, 1))
    head.slots.net.to(DEVICE)
    head.slots._kernel, head.vocabulary.ids = None, head.vocabulary.ids.to(DEVICE)
    parts = {"none": NoDrafter(VOCAB), "eagle": head, "ngram": NGram(VOCAB)}
    if plan.drafter == "dflash":
        parts["dflash"] = stack = dflash(target, IDS, features=(0, 1), block=8)
        stack.slots.net.to(DEVICE)
        stack.slots._kernel, stack.vocabulary.ids = None, stack.vocabulary.ids.to(DEVICE)
    if plan.drafter in EXITS:
        parts[plan.drafter] = early_exit(target, EXITS[plan.drafter])
    if plan.drafter in HEADS:
        parts[plan.drafter] = drafter_for(plan.drafter)(target, IDS, (0, 1))
    if plan.drafter == "draft_model":
        parts["draft_model"] = draft_model(target, fast, ids)
    runner = CapturedRunner(target, target.decoder) if fast else None
    batch = Batch(
        target,
        parts.__getitem__,
        lambda name: rules.get(name)(),
        policy or Adaptive(SHALLOW),
        Limits(),
        runner=runner,
    )
    jobs, rng = [], random.Random(1)
    for n, (length, tokens) in enumerate(PROMPTS):
        prompt = [rng.randrange(VOCAB) for _ in range(length)] * (2 if plan.drafter == "ngram" else 1)
        request, own = Request(prompt, replace(how, seed=n), tokens), plan
        if plan.depth is not None:
            own = replace(plan, depth=max(0, plan.depth - n))
        jobs.append(Job(request, own, prompt_logprobs=prompt_logprobs))
        batch.check(jobs[-1])
        batch.add(jobs[-1])
    with torch.inference_mode():
        while batch.step():
            target.check_integrity()
            if "draft_model" in parts:
                parts["draft_model"].model.check_integrity()
    assert not batch.failures
    return jobs, runner.cycles if runner else 0


EXITS = {"early_exit": 0, "early_exit, window of 4": 4, "early_exit, window of 16": 16}
HEADS = ("medusa", "medusa,recurrent", "mlp", "prophet", "prophet,linear")  # of four tokens each
CUT = Sampling(temperature=0.9, top_k=20, top_p=0.8, min_p=0.05)


@pytest.mark.parametrize(
    ("drafter", "rule", "depth", "how"),
    [("none", "token", 0, CUT), ("early_exit, window of 4", "coupled", 2, Sampling(0.8)),
     ("mlp", "coupled", 5, Sampling(0.8)), ("prophet", "block", 3, Sampling(0.7)),
     ("eagle", "greedy", 2, Sampling(0)), ("draft_model", "coupled", 1, Sampling(1.0)),
     ("ngram", "token", 2, Sampling(0.3)),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in [
         ("none", "block", 0, Sampling(0.8)), ("eagle", "coupled", 2, Sampling(1.0)), ("eagle", "token", 2, CUT),
         ("eagle", "block", 3, Sampling(0.8)), ("dflash", "greedy", 3, Sampling(0)),
         ("dflash", "block", 8, Sampling(0.8)), ("dflash", "coupled", 2, CUT),
         ("dflash", "token", 2, Sampling(0.8)), ("draft_model", "greedy", 3, Sampling(0)),
         ("draft_model", "token", 2, Sampling(0.8)), ("ngram", "greedy", 3, Sampling(0)),
         ("ngram", "block", 3, Sampling(0.5)), ("ngram", "coupled", 2, CUT), ("draft_model", "block", 2, CUT),
         ("medusa", "block", 3, Sampling(0.8)), ("medusa", "greedy", 6, Sampling(0)),
         ("mlp", "token", 3, Sampling(0.8)), ("prophet,linear", "coupled", 2, CUT),
         ("prophet", "coupled", 4, Sampling(0.8)), ("early_exit", "block", 2, Sampling(0.8)),
         ("early_exit", "coupled", 3, CUT), ("early_exit, window of 4", "token", 3, Sampling(0.8)),
         ("early_exit, window of 16", "greedy", 3, Sampling(0))])],
)  # fmt: skip
def test_captured_cycles_say_what_the_others_say(drafter, rule, depth, how):
    plan = DecodingPlan(drafter, rule, depth)
    wanted, _ = outputs(fast=False, plan=plan, how=how)
    mine, cycles = outputs(fast=True, plan=plan, how=how)
    assert mine == wanted
    assert cycles, "no cycle was a whole one"


@pytest.mark.slow
def test_parts_of_a_cycle_can_be_repeated_and_change_neither_rows_nor_control(monkeypatch):
    """Energy is measured by repeating parts of a cycle."""
    runners = list[CapturedRunner]()

    class KeptRunner(CapturedRunner):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            runners.append(self)

    monkeypatch.setattr(sys.modules[__name__], "CapturedRunner", KeptRunner)
    monkeypatch.setattr(sys.modules[__name__], "PROMPTS", ((3, 4),))
    decoded(True, DecodingPlan("eagle", "greedy", 2), Sampling(0))
    cycle = next(c for c in runners[0].captured if isinstance(c, ChainCycle) and c.key.depth)
    with torch.inference_mode():
        cycle.load_rows(1, 5, 0.0)
        before = cycle._inputs._words.clone()
        assert before[1].tolist()[0] == 5
        assert before[2].tolist() == [cycle.key.depth] + [-1] * (cycle.key.rows - 1)
        parts = cycle.parts(["draft", "score", "verify"])
        verdicts = []
        for _ in range(2):
            for run in parts.values():
                run()
            verdicts.append([tensor.tolist() for tensor in cycle._scoring.verdict])
    assert list(parts) == ["draft", "score", "verify"]
    assert verdicts[0] == verdicts[1]
    assert torch.equal(cycle._inputs._words, before)


class LateDrafts(Fixed):
    """Captured cycles draft two tokens from the third token on. `drafts` holds what was drafted after which text."""

    def __init__(self) -> None:
        super().__init__(2)
        self.drafts: dict[tuple[int, ...], list[int]] = {}

    def choose(self, rows, menu, ready=None):
        return Budget(2 if rows[0].emitted > 1 else 0)

    def observe(self, rows, draft, verdict):
        for (r, _), token in zip(draft.tree.lists, draft.token.tolist(), strict=True):
            self.drafts.setdefault(tuple(rows[r].tokens), []).append(token)

    def observe_captured(self, rows, results):
        self.drafts |= {tuple(row.tokens): result.tokens for row, result in zip(rows, results, strict=True)}


def test_a_head_reads_what_it_missed_before_it_drafts_again():
    """Cycles without drafts leave the head's cache as it is. It drafts afterwards as if it had read every token."""
    plan = DecodingPlan("eagle", "greedy", None)
    ordinary, captured = LateDrafts(), LateDrafts()
    wanted, _ = decoded(False, plan, Sampling(0), policy=ordinary)
    jobs, cycles = decoded(True, plan, Sampling(0), policy=captured)
    assert [job.row.output for job in jobs] == [job.row.output for job in wanted]
    assert cycles
    same = [text for text, tokens in captured.drafts.items() if tokens and text in ordinary.drafts]
    assert same
    assert [captured.drafts[text] for text in same] == [ordinary.drafts[text] for text in same]


@pytest.mark.slow
def test_prompts_that_were_scored_go_on_with_whole_cycles():
    plan, how = DecodingPlan("eagle", "greedy", 2), Sampling(0)
    wanted, _ = decoded(False, plan, how)
    scored, cycles = decoded(True, plan, how, prompt_logprobs=2)
    assert [job.row.output for job in scored] == [job.row.output for job in wanted]
    assert cycles, "no cycle was a whole one"
    model = build("llama", **LAYERS)
    for job in scored:
        prompt = job.row.request.prompt
        with torch.inference_mode():
            law = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        first, *rest = job.prompt_logprobs
        assert first is None
        expected = [float(law[i, token]) for i, token in enumerate(prompt[1:])]
        assert [entry.logprob for entry in rest] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("drafter", "rule", "tokens"),
    [("eagle", "block", (4, 8)), pytest.param("eagle", "coupled", (8, 4), marks=pytest.mark.slow),
     pytest.param("ngram", "token", (5, 5), marks=pytest.mark.slow)],
)  # fmt: skip
def test_greedy_and_sampled_rows_share_whole_cycles(drafter, rule, tokens):
    """Each row says what it says alone on the ordinary path, also after the rows of the other kind have ended."""
    ways = [("greedy", Sampling(0, seed=1)), (rule, Sampling(0.7, seed=2)), ("greedy", Sampling(0, seed=3))]
    lengths = tokens[0], tokens[1], tokens[0] + 1
    requests = [Request([5, 6, 7, 5, 6, 4 + n], how, lengths[n]) for n, (_, how) in enumerate(ways)]
    plans = [DecodingPlan(drafter, name, 2) for name, _ in ways]
    alone = [run_jobs(False, [Job(*pair)])[0][0] for pair in zip(requests, plans, strict=True)]
    jobs = [Job(*pair) for pair in zip(requests, plans, strict=True)]
    found, cycles = run_jobs(True, jobs)
    assert found == alone
    assert 0 < cycles <= max(job.stats.cycles for job in jobs), "one cycle at a time for all rows"


def run_jobs(fast: bool, jobs: list[Job]) -> tuple[list[list[int]], int]:
    target = TorchModel(build("llama", **LAYERS).to(DEVICE))
    target.forward_pass.decoder = passes(target) if fast else None
    runner = CapturedRunner(target, target.decoder) if fast else None
    head = eagle(target, IDS, features=(0, 1))
    head.slots.net.to(DEVICE)
    head.slots._kernel, head.vocabulary.ids = None, head.vocabulary.ids.to(DEVICE)
    parts = {"none": NoDrafter(VOCAB), "ngram": NGram(VOCAB), "eagle": head}
    batch = Batch(target, parts.__getitem__, lambda name: rules.get(name)(), Adaptive(SHALLOW), Limits(), runner=runner)
    for job in jobs:
        batch.add(job)
    with torch.inference_mode():
        while batch.step():
            target.check_integrity()
    assert not batch.failures
    return [job.row.output for job in jobs], runner.cycles if runner else 0


@pytest.mark.slow
def test_a_draft_model_with_the_whole_vocabulary():
    plan = DecodingPlan("draft_model", "block", 3)
    wanted, _ = outputs(False, plan, Sampling(0.7), ids=None)
    assert outputs(True, plan, Sampling(0.7), ids=None)[0] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "gemma2", *(["gpt_oss"] if DEVICE == "cpu" else [])])
def test_modules_of_other_kinds_run_whole_cycles(kind):
    """Windows, capped scores and sinks among them."""
    plan = DecodingPlan("eagle", "block", 2)
    wanted, _ = outputs(fast=False, plan=plan, how=Sampling(0.8), kind=kind)
    mine, cycles = outputs(fast=True, plan=plan, how=Sampling(0.8), kind=kind)
    assert mine == wanted
    assert cycles


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_passes_of_the_common_kind_agree_with_the_modules(kind):
    model = build(kind).to(DEVICE)
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    layers, windows = TorchModel(model).anatomy.layers, dict.fromkeys(range(3))
    with torch.inference_mode():
        assert agrees(GpuDecoder(model, layers, windows), model, layers)
        model.base_model.layers[1].mlp.act_fn = torch.nn.GELU()
        assert not agrees(GpuDecoder(model, layers, windows), model, layers)


def test_windows_and_other_kinds_are_left_to_the_modules():
    model = build("llama")
    layers = TorchModel(model).anatomy.layers
    with pytest.raises(TypeError, match="window"):
        GpuDecoder(model, layers, {0: None, 1: 8, 2: None})
    other = build("gpt2")
    with pytest.raises((TypeError, AttributeError)) as refusal:
        GpuDecoder(other, TorchModel(other).anatomy.layers, dict.fromkeys(range(3)))
    assert "violates type hint" not in str(refusal.value), "the decoder refuses it, not the check of types"


def test_weights_are_laid_together_once():
    model = build("llama").to(DEVICE)
    layers, windows = TorchModel(model).anatomy.layers, dict.fromkeys(range(3))
    before = model.base_model.layers[0].self_attn.k_proj.weight.clone()
    one, other = (GpuDecoder(model, layers, windows).net.blocks[0].qkv for _ in range(2))
    assert one.data_ptr() == other.data_ptr()
    assert one.shape == other.shape
    assert torch.equal(model.base_model.layers[0].self_attn.k_proj.weight, before)
    assert model.base_model.layers[0].self_attn.k_proj.weight.data_ptr() == one[32:].data_ptr()


class Letters:
    """Text of a token, for those who wait for it."""

    def push(self, tokens: list[int]) -> str:
        return "".join(f"<{token}>" for token in tokens)

    def flush(self) -> str:
        return ""


@pytest.mark.slow
def test_everyone_is_told_all_of_it_in_order_however_a_row_ends():
    """What the device emitted is told while it works on the next cycle: nothing is lost where there is none."""
    target = TorchModel(build("llama", **LAYERS).to(DEVICE))
    target.forward_pass.decoder = passes(target)
    parts = {"none": NoDrafter(VOCAB), "ngram": NGram(VOCAB)}
    batch = Batch(
        *(target, parts.__getitem__, lambda name: rules.get(name)(), Adaptive(SHALLOW), Limits()),
        runner=CapturedRunner(target, target.decoder),
    )
    plan = DecodingPlan("ngram", "greedy", 2)

    def submit(tokens: int, stop: tuple[str, ...] = ()) -> Job:
        job = Job(Request([5, 6, 7, 5, 6], Sampling(0), tokens), plan, Letters(), stop)  # type: ignore[arg-type]
        batch.add(job)
        return job

    whole = submit(7)
    with torch.inference_mode():
        while batch.step():
            pass
        said = whole.row.output
        stopped, cancelled, last = submit(7, (f"<{said[3]}>",)), submit(7), submit(6)
        for _ in range(3):
            batch.step()
        cancelled.cancel()
        while batch.step():
            pass
    assert not batch.failures
    assert last.result().token_ids == said[:6]
    end = said.index(said[3])
    assert stopped.result().text == "".join(f"<{token}>" for token in said[:end])
    assert stopped.result().finish_reason == "stop"
    assert cancelled.result().finish_reason == "cancelled"
    assert cancelled.result().token_ids == said[: len(cancelled.row.output)]
    for job in (whole, cancelled, last):
        done = job.result()
        assert done.text == "".join(f"<{token}>" for token in done.token_ids)
        assert [token for chunk in job._seen for token in chunk.token_ids] == done.token_ids
        assert done.stats.emitted == len(done.token_ids)


def test_a_text_that_cannot_be_told_ends_its_own_request_alone():
    target = TorchModel(build("llama", **LAYERS).to(DEVICE))
    target.forward_pass.decoder = passes(target)
    parts = {"none": NoDrafter(VOCAB)}
    batch = Batch(
        *(target, parts.__getitem__, lambda name: rules.get(name)(), Adaptive(SHALLOW), Limits()),
        runner=CapturedRunner(target, target.decoder),
    )

    class Broken(Letters):
        def push(self, tokens: list[int]) -> str:
            raise RuntimeError("no such letter")

    plan = DecodingPlan("none", "greedy", 0)
    asked = Request([5, 6, 7], Sampling(0), 4)
    bad, good = (Job(asked, plan, text) for text in (Broken(), Letters()))  # type: ignore[arg-type]
    for job in (bad, good):
        batch.add(job)
    with torch.inference_mode():
        while batch.step():
            pass
    assert (bad.result().finish_reason, bad.result().error) == ("error", "no such letter")
    assert good.result().text == "".join(f"<{token}>" for token in good.row.output)
    assert not batch.failures


@pytest.mark.parametrize(
    "drafter", ["none", "eagle", *[pytest.param(name, marks=pytest.mark.slow) for name in ("dflash", *EXITS, *HEADS)]]
)
@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # on processors without such products
def test_drafters_have_captured_cycles_in_half_precision(drafter):
    """Passes keep their states in float32, and heads have the model's own type."""
    jobs, cycles = decoded(True, DecodingPlan(drafter, "greedy", 2), Sampling(0), dtype=torch.bfloat16)
    assert cycles
    assert [len(job.row.output) for job in jobs] == [tokens for _, tokens in PROMPTS]
