"""Keeps engines open at the same time for interleaved runs: all of them, or as many as memory allows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from slipstream.bench.matrix import OWN_RULE, PLAIN, Matrix, Setup
from slipstream.bench.measure.memory import is_out_of_memory, release_memory
from slipstream.drafters.build import drafter_kind
from slipstream.engines import engines, open_engine
from slipstream.engines.base import Engine, Speculation
from slipstream.engines.extras import check_installed
from slipstream.engines.native.build import build_target
from slipstream.engines.native.scheduler import Limits
from slipstream.models.target import Target

ROWS = ("transformers", "llamacpp")  # engines that take the requests decoded together as an option


@dataclass(frozen=True)
class EngineSettings:
    """The model that every engine loads, and the number of simultaneous requests."""

    model: str
    rows: int = 1
    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments for loading the model."""
        return {"dtype": self.dtype, "device": self.device, "trust_remote_code": self.trust_remote_code}


class EnginePool:
    """Opens an engine on first use.

    Native engines share one target. If requests can choose their depth, one engine serves all depths. Prefix reuse
    is off, so that every repeat reads its prompts. `hold`: maximum number of open engines; the least recently used one
    is closed to make room."""

    def __init__(self, settings: EngineSettings, matrix: Matrix, hold: int | None = None) -> None:
        if hold is not None and hold < 1:
            raise ValueError(f"hold is {hold}; it must be 1 or more, or left out to hold every engine open")
        self.settings, self.matrix, self.hold = settings, matrix, hold
        self._engines: dict[Setup, Engine] = {}
        self._target: Target | None = None
        self._draft_speeds: dict[tuple[str, str], float | None] = {}

    def check(self) -> None:
        """Raise ValueError for setups that cannot run, before anything is loaded."""
        for setup in self.matrix.setups():
            capabilities = engines.get(setup.engine).capabilities
            check_installed(setup.engine, self.matrix.options_of(setup))
            kind_of(setup, capabilities.drafters)
            if setup.plan is None and setup.rule is not None and setup.rule not in capabilities.rules:
                legal = ", ".join(("auto", *capabilities.rules))
                raise ValueError(f"the engine {setup.engine} has no rule {setup.rule}; it takes {legal}")
        self.matrix.check_options()

    def open(self, setup: Setup) -> Engine:
        key = opened_for(setup)
        if key not in self._engines:
            self._make_room(key.engine)
            self._engines[key] = self._make(key)
        self._engines[key] = self._engines.pop(key)  # the most recently used engine is last
        return self._engines[key]

    def speculation(self, setup: Setup) -> Speculation:
        """The speculation options of a request. Other options were set when the engine was opened."""
        if setup.plain or setup.plan is not None or not _switches(setup):
            return Speculation()
        return Speculation(depth=setup.depth)

    def draft_alone(self, setup: Setup, prompt: str, tokens: int = 32) -> float | None:
        """Tokens per second of the draft model by itself in the same engine; None if the drafter is not a model."""
        key = setup.engine, setup.drafter
        if key not in self._draft_speeds:
            self._draft_speeds[key] = self._draft_speed(setup, prompt, tokens)
        return self._draft_speeds[key]

    def close(self) -> None:
        self._close_all_but(0)
        self._target = None

    @contextmanager
    def explain_memory_errors(self, setup: Setup) -> Iterator[None]:
        """Turn an out-of-memory error into one sentence with a remedy."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            message = (str(error).splitlines() or ["MemoryError"])[0].rstrip(". ")
            remedy = "a smaller model may" if self.hold == 1 else "--hold 1, which keeps one engine open at a time, may"
            raise ValueError(f"there is not memory enough for {setup.title} ({message}); {remedy} help") from error

    def _make_room(self, engine: str) -> None:
        """Close engines to make room for one more. The native target is freed if no open or new engine needs it."""
        if self.hold is None:
            return
        self._close_all_but(self.hold - 1)
        if engine != "native" and all(key.engine != "native" for key in self._engines):
            self._target = None
        release_memory()

    def _close_all_but(self, count: int) -> None:
        while len(self._engines) > count:
            self._engines.pop(next(iter(self._engines))).close()

    def _make(self, setup: Setup) -> Engine:
        rows = {"rows": str(self.settings.rows)} if setup.engine in ROWS else {}
        options = rows | self.matrix.options_of(setup)
        model: Any = self.settings.model
        loading = self.settings.loading
        if setup.engine == "native":
            self._target = self._target or build_target(model, **loading)
            model, loading = self._target, {"limits": Limits(rows=max(16, self.settings.rows), retained=0)}
        if setup.plan is not None:
            return open_engine(setup.engine, model, plan=self.matrix.plans[setup.plan], **loading)
        rule = setup.rule or OWN_RULE.get(setup.engine)
        return open_engine(setup.engine, model, setup.drafter, rule, setup.depth, options, **loading)

    def _draft_speed(self, setup: Setup, prompt: str, tokens: int) -> float | None:
        if kind_of(setup, engines.get(setup.engine).capabilities.drafters) != "draft_model":
            return None
        if setup.engine == "native":  # its draft model may be some layers of the target, which has no name
            engine = self.open(setup)
            (sample,) = engine.generate(prompt, max_tokens=24)
            engine.draft_speed(sample, 4)  # warm-up, not timed
            return engine.draft_speed(sample, tokens)
        name = self.matrix.options_of(setup).get("model", setup.drafter)
        return self._plain_speed(Setup(setup.engine, PLAIN, 0, None), name, prompt, tokens)

    def _plain_speed(self, setup: Setup, model: str, prompt: str, tokens: int) -> float:
        from slipstream.bench.measure.measurement import Load, measure, warm
        from slipstream.bench.workloads import Item

        items, load = [Item((prompt,), "draft")], Load(1, 0.0, tokens)
        options = {key: value for key, value in self.matrix.options_of(setup).items() if key != "model"}
        self._make_room(setup.engine)
        with open_engine(setup.engine, model, options=options, **self.settings.loading) as engine:
            warm(engine, items, load)
            return measure(engine, items, load).speed


def _switches(setup: Setup) -> bool:
    return engines.get(setup.engine).capabilities.switch


def opened_for(setup: Setup) -> Setup:
    """The setup that an engine is opened with: one for all depths if requests can choose their depth."""
    if setup.plan is not None:
        return replace(setup, rule=None)  # the plan states its rule
    if setup.plain or not _switches(setup):
        return setup
    return Setup(setup.engine, setup.drafter, None, setup.rule)


def kind_of(setup: Setup, legal: Collection[str]) -> str:
    """A drafter's kind: its own name if the engine has it, `draft_model` if it is a model. ValueError otherwise."""
    if setup.plan is not None:  # it was checked when it was read
        return setup.drafter
    try:
        kind = setup.drafter if setup.drafter in legal else drafter_kind(setup.drafter)
    except ValueError:
        kind = ""
    if kind not in legal:
        legal_names = ", ".join(legal)
        raise ValueError(
            f"the engine {setup.engine} cannot draft with {setup.drafter}; it takes {legal_names}, or a model"
        )
    return kind
