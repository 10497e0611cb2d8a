"""Reads what plain decoding tells of a workload before anything is drafted for it.

The target's certainty moves the acceptance of drafters that follow the model (`plan.forecast.text_shift`). Drafters
that copy from the text are run over the finished text instead: the tokens that would have been accepted are counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slipstream.bench.engine_pool import EnginePool
from slipstream.bench.journal import Journal
from slipstream.bench.matrix import Cell
from slipstream.bench.run import BenchSchedule
from slipstream.bench.workloads import Item
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.drafters.per_row import PerRow
from slipstream.engines.base import GenerationOptions
from slipstream.engines.native.engine import NativeEngine
from slipstream.plan.forecast.text_shift import TextCertainty
from slipstream.plan.profile.runs import ProfileRun


def text_forecast(
    schedule: BenchSchedule, pool: EnginePool, journal: Journal
) -> tuple[list[TextCertainty], list[ProfileRun]]:
    """The certainty of each workload and temperature, and the runs of copying drafters over its plain text."""
    certainties, replays = list[TextCertainty](), list[ProfileRun]()
    for cell in _plain_cells(schedule):
        key = schedule.key(cell, 0, {}) | {"text": True}
        entry = journal.get(key)
        if entry is None:
            entry = _plain_texts(pool.open(cell.setup), schedule.workloads[cell.workload].items, cell, schedule)
            journal.add(key, entry)
        certainties.append(TextCertainty(cell.workload, cell.temperature, entry["certainty"]))
        drafting = {c.setup.drafter: c for c in schedule.cells if c.load == cell.load and not c.setup.plain}
        depth = max((c.setup.depth or 1 for c in schedule.cells), default=1)
        for name, own in drafting.items():
            engine = pool.open(own.setup)
            assert isinstance(engine, NativeEngine), "checked by check_forecastable"
            if isinstance(drafter := engine.drafter(name), PerRow):
                replays.append(replayed(drafter, name, cell, depth, entry["texts"]))
    return certainties, replays


def _plain_cells(schedule: BenchSchedule) -> list[Cell]:
    """One plain cell for each workload and temperature."""
    cells = {(cell.workload, cell.temperature): cell for cell in reversed(schedule.cells) if cell.setup.plain}
    return list(cells.values())


def _plain_texts(engine: Any, items: Sequence[Item], cell: Cell, schedule: BenchSchedule) -> dict[str, Any]:
    """Prompt and output of each item's first turn, and the mean of the target's largest probability."""
    options = [GenerationOptions(schedule.max_tokens, stop=item.stop, raw=item.raw, logprobs=1) for item in items]
    sampling = Sampling(cell.temperature)
    handles = [engine.submit(item.turns[0], sampling, wanted)[0] for item, wanted in zip(items, options, strict=True)]
    largest, texts = list[float](), list[list[list[int]]]()
    for item, wanted, handle in zip(items, options, handles, strict=True):
        done = handle.result()
        largest += [math.exp(entry.top_logprobs[0][1]) for entry in done.logprobs]
        prompt = engine.request(item.turns[0], sampling, wanted).prompt
        texts.append([list(prompt), list(done.token_ids)])
    return {"certainty": sum(largest) / max(1, len(largest)), "texts": texts}


def replayed(drafter: PerRow, name: str, cell: Cell, depth: int, texts: Sequence[Sequence[list[int]]]) -> ProfileRun:
    """A run of a copying drafter over finished texts: what it proposes at each place against what follows there."""
    accepted, drafted, cycles, emitted, context = [0] * depth, [0] * depth, 0, 0, 0
    for prompt, output in texts:
        tokens, done = [*prompt, *output], len(prompt)
        row_drafter = drafter.new(Row(Request(prompt, max_tokens=len(output) + 1)))
        while done < len(tokens):
            guess = row_drafter.guess(tokens[:done], min(depth, len(tokens) - done - 1))
            kept = next((i for i, token in enumerate(guess) if token != tokens[done + i]), len(guess))
            for i in range(len(guess)):
                drafted[i] += 1
                accepted[i] += i < kept
            cycles, emitted, context = cycles + 1, emitted + kept + 1, context + done
            done += kept + 1
    counts = 1.0, max(1, emitted), max(1, cycles), emitted, context / max(1, cycles), tuple(accepted), tuple(drafted)
    return ProfileRun(name, depth, 1, cell.temperature, cell.workload, *counts)
