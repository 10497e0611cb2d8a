"""An engine that computes nothing: two tokens for every row in each cycle, with a real tokenizer. HTTP is what is left
to measure (`overhead.py --scripted`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from slipstream.core.sampling import Sampling
from slipstream.core.types import Origin
from slipstream.engines.base import Capabilities, Guarantee, ModelInfo, Speculation
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.job_engine import JobEngine
from slipstream.models.sources.catalog import load_text, resolve
from slipstream.models.text.codec import TextCodec

CYCLE_SECONDS = 0.004
ORIGINS = (Origin.ACCEPTED, Origin.BONUS)


class ScriptedEngine(JobEngine):
    capabilities = Capabilities(drafters=("none",), sampling=frozenset({"temperature", "seed"}), switch=True)

    def __init__(self, model: str) -> None:
        self._text, self._rows, self._closed = load_text(resolve(model)), list[Job](), False
        self._words = self._text.encode("It is a long way from here to the old lighthouse, said the keeper.", raw=True)
        self._thread = threading.Thread(target=self._work, name="slipstream", daemon=True)
        self._thread.start()

    @property
    def model_info(self) -> ModelInfo:
        return ModelInfo("scripted", "scripted", None, 1 << 20, 8192)

    @property
    def text(self) -> TextCodec:
        return self._text

    @property
    def stats(self) -> dict[str, Any]:
        return {"running": len(self._rows)}

    def _work(self) -> None:
        while not self._closed:
            began = time.perf_counter()
            for job in self._rows[:]:
                at = job.row.emitted % (len(self._words) - 1)
                tokens = self._words[at : at + 2]
                kept = job.row.extend(tokens, ORIGINS, 8192)
                job.stats.add(1, 1, kept)
                job.emit(tokens[:kept], ORIGINS[:kept])
                if job.done or job.cancelled:
                    job.end("cancelled")
                    self._rows.remove(job)
            time.sleep(max(0.0, CYCLE_SECONDS - (time.perf_counter() - began)))

    def _check_running(self) -> None:
        pass

    def _plan(self, speculation: Speculation, sampling: Sampling) -> DecodingPlan:
        return DecodingPlan("none", "token", None)

    def _guarantee(self, plan: DecodingPlan, sampling: Sampling) -> Guarantee:
        return Guarantee("token", True)

    def _send(self, jobs: Sequence[Job]) -> None:
        self._rows += jobs

    def close(self) -> None:
        self._closed = True
        self._thread.join()


def open_scripted(model: str) -> ScriptedEngine:
    return ScriptedEngine(model)
