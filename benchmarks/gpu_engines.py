"""Tokens per second of whole engines on a GPU, prompts included, all ways in turn: ours, and transformers' own."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_common import TREES, WAYS, answer, open_engine, prompts

from slipstream.bench.workloads import load_workloads
from slipstream.drafters.build import build_drafter
from slipstream.engines.base import Speculation
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.catalog import full_folder
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.scaled import CostScale, interleaved, scaled_config, widened
from slipstream.models.target import Target

Way = Callable[[], tuple[int, float]]  # tokens, tau
Generate = Callable[..., tuple[int, float]]
DRAFTS = {f"draft {depth}": Speculation(depth=depth) for depth in (3, 5)}
AUTO = {"auto": Speculation()}
WORKLOADS = ("code", "chat", "maths", "summary", "rewriting")
WARM, THEIRS = 2, 2  # runs of each way before any is timed; runs of what is slow, the first of which is no figure
WIDTH = 8  # of the scaled model: 7 billion weights


def engines(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """The default model with its head, by batch."""
    engine, told = open_engine(asked), dict[str, Any]()
    theirs = generate(_plain(full_folder(engine.target.files.path)), engine, asked.tokens)
    for batch in asked.batches:
        for warm in (0.0, 0.8) if batch == 1 else (0.0,):
            ways = {**WAYS, **({} if warm else {"tree 15": TREES["tree 15"]}), **AUTO}
            told[f"batch {batch}, T {warm}"] = _cell(asked, engine, theirs, prompts(max(4, batch)), batch, warm, ways)
            print(f"batch {batch}, T {warm}: {json.dumps(told[f'batch {batch}, T {warm}'])}", flush=True)
    engine.close()
    return told


def trees(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """Shapes by workload, greedy and at temperature 1, where a tree is judged by `coupled`, as are the chains beside
    it."""
    engine, told = open_engine(asked), dict[str, Any]()
    for warm in (0.0, 1.0):
        ways = {**WAYS, **TREES, **AUTO}
        ways = {name: replace(how, verify="coupled") for name, how in ways.items()} if warm else ways
        for name in WORKLOADS:
            texts = [item.turns[0] for item in load_workloads(name)[0].items[:2]]
            told[f"{name}, T {warm}"] = _cell(shorter(asked, 96), engine, None, texts, 1, warm, ways)
            print(f"{name}, T {warm}: {json.dumps(told[f'{name}, T {warm}'])}", flush=True)
    engine.close()
    return told


def scaled(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """The same function at the cost of 7 billion weights; the draft model shipped for it drafts."""
    small = build_target(asked.model)
    drafter = build_drafter("draft_model", small)
    model = _widened(full_folder(small.files.path))
    plain = _widened(full_folder(small.files.path))
    target = Target(small.files, TorchModel(model), small.text)
    engine = NativeEngine(target, "none", "block", limits=Limits(rows=64, retained=0))
    engine._drafters["draft_model"] = drafter
    told: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    ways = {"plain": WAYS["plain"]} | {n: replace(how, drafter="draft_model") for n, how in (DRAFTS | AUTO).items()}
    asked = shorter(asked, 64)
    theirs = generate(plain, engine, asked.tokens)
    for batch in asked.batches:
        told[f"batch {batch}"] = _cell(asked, engine, theirs, prompts(max(2, batch)), batch, 0.0, ways)
        print(f"scaled, batch {batch}: {json.dumps(told[f'batch {batch}'])}", flush=True)
    engine.close()
    return told


def pair(asked: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """A target and a smaller model of its family at temperature 0.8, beside transformers' assisted generation."""
    name, draft = asked.pair
    engine = NativeEngine(build_target(name), draft, "block", limits=Limits(rows=64, retained=0))
    told: dict[str, Any] = {"target": name, "sha256": engine.target.files.sha256, "draft": draft}
    partner = engine.drafter(draft).model.model  # type: ignore[attr-defined]
    folder = Path(partner.config._name_or_path)
    theirs = generate(_plain(full_folder(engine.target.files.path)), engine, asked.tokens, _plain(folder))
    items = load_workloads(asked.workload)[0].items
    for batch in asked.batches:
        texts = [items[i % len(items)].turns[0] for i in range(max(4, batch))]
        for warm in (0.8, 0.0) if batch == 1 else (0.8,):
            cell = _cell(asked, engine, theirs, texts, batch, warm, {"plain": WAYS["plain"], **DRAFTS, **AUTO})
            told[f"batch {batch}, T {warm}"] = cell
            print(f"pair, batch {batch}, T {warm}: {json.dumps(cell)}", flush=True)
    engine.close()
    return told


def _cell(
    asked: argparse.Namespace,
    engine: NativeEngine,
    theirs: Generate | None,
    texts: list[str],
    batch: int,
    warm: float,
    ours: Mapping[str, Speculation],
) -> Any:
    ways: dict[str, Way] = {
        name: lambda how=how: answer_all(engine, texts, batch, asked.tokens, how, warm)  # type: ignore[misc]
        for name, how in ours.items()
    }
    if theirs is not None:
        ways["transformers"] = lambda: theirs(texts, batch, warm)
    if theirs is not None and batch == 1:  # both take no more than one at a time
        ways["transformers, prompt lookup"] = lambda: theirs(texts, batch, warm, prompt_lookup_num_tokens=5)
        if theirs.assistant is not None:  # type: ignore[attr-defined]
            ways["transformers, assisted"] = lambda: theirs(texts, batch, warm, assisted=True)
    for name in ours:  # sizes are captured when they are first met, and a policy looks for its own
        for _ in range(WARM):
            ways[name]()
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    captures: dict[str, list[int]] = {name: [] for name in ways}
    taus = {}
    for repeat in range(asked.repeats):
        for name, run in ways.items():
            if name not in ours and repeat >= THEIRS:
                continue
            torch.cuda.synchronize()
            began, before = time.perf_counter(), _captures(engine)
            count, taus[name] = run()
            speeds[name].append(count / (time.perf_counter() - began))
            captures[name].append(_captures(engine) - before)
    return {
        name: {
            "tokens_per_second": round(statistics.median(each if name in ours else each[1:] or each), 1),
            "repeats": [round(speed) for speed in each],
            "tau": round(taus[name], 2),
            **({"captures": captures[name]} if any(captures[name]) else {}),
        }
        for name, each in speeds.items()
    }


def shorter(asked: argparse.Namespace, tokens: int) -> argparse.Namespace:
    """For parts with many cells: no more tokens than these, and two repeats."""
    return argparse.Namespace(**{**vars(asked), "tokens": min(tokens, asked.tokens), "repeats": min(2, asked.repeats)})


def _captures(engine: NativeEngine) -> int:
    """Cycles captured so far."""
    runner = engine._batch.captured.runner
    return 0 if runner is None else runner.captures


def answer_all(
    engine: NativeEngine, texts: list[str], batch: int, tokens: int, how: Speculation, warm: float
) -> tuple[int, float]:
    counts = [answer(engine, texts[i : i + batch], tokens, how, warm)[:2] for i in range(0, len(texts), batch)]
    return sum(count for count, _ in counts), statistics.mean(tau for _, tau in counts)


class generate:
    """transformers' `generate`, by itself or helped."""

    def __init__(self, model: Any, engine: NativeEngine, tokens: int, assistant: Any = None) -> None:
        self._model, self._text, self._tokens, self.assistant = model, engine.target.text, tokens, assistant

    def __call__(
        self, texts: list[str], batch: int, warm: float, assisted: bool = False, **how: Any
    ) -> tuple[int, float]:
        total = 0
        for i in range(0, len(texts), batch) if batch > 1 else range(1):  # one is enough: it is the slow one
            lines = [self._text.encode(text) for text in texts[i : i + batch]]
            wide = max(map(len, lines))
            ids = torch.tensor([[0] * (wide - len(line)) + line for line in lines], device="cuda")
            mask = torch.tensor([[0] * (wide - len(line)) + [1] * len(line) for line in lines], device="cuda")
            self._model.generate(
                ids,
                attention_mask=mask,
                **({"do_sample": True, "temperature": warm, "top_k": 0} if warm else {"do_sample": False}),
                pad_token_id=0,
                **({"assistant_model": self.assistant} if assisted else {}),
                **({"max_new_tokens": self._tokens, "min_new_tokens": self._tokens} | how),
            )
            total += len(lines) * self._tokens
        return total, 1.0


def _plain(folder: Path) -> Any:
    """A model as transformers loads it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to("cuda").eval()


def _widened(folder: Path) -> Any:
    """The scaled model (`slipstream.models.sources.scaled`), made on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    small, config = _plain(folder), read_json(folder / "config.json")
    made = scaled_config(config, CostScale(WIDTH), interleaved(config["num_hidden_layers"], 0))
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**made), dtype=torch.bfloat16)
    state = small.state_dict()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(widened(name, state[name], WIDTH))
    model.generation_config = small.generation_config
    return model.eval()
