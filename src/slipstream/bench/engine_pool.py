"""Holds engines open at the same time, so that setups can take turns: all, or as many as memory allows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    """What every engine loads, and for how many rows at once."""

    model: str
    rows: int = 1
    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments with which every engine loads its model."""
        return {"dtype": self.dtype, "device": self.device, "trust_remote_code": self.trust_remote_code}


class EnginePool:
    """Opens an engine when it is first asked for. Native engines share one target; where an engine lets requests
    choose their depth, one serves all depths. Nothing is kept between prompts, so that every repeat reads its own.
    With `hold`, only so many are open at a time: the one that was used least recently makes room for the next."""

    def __init__(self, settings: EngineSettings, matrix: Matrix, hold: int | None = None) -> None:
        if hold is not None and hold < 1:
            raise ValueError(f"hold is {hold}; it must be 1 or more, or left out to hold every engine open")
        self.settings, self.matrix, self.hold = settings, matrix, hold
        self._engines: dict[Setup, Engine] = {}
        self._target: Target | None = None
        self._alone: dict[tuple[str, str], float | None] = {}

    def check(self) -> None:
        """Refuse what cannot run before anything is loaded."""
        for setup in self.matrix.setups():
            offers = engines.get(setup.engine).capabilities
            check_installed(setup.engine, self.matrix.options_of(setup))
            kind_of(setup, offers.drafters)
            if setup.rule is not None and setup.rule not in offers.rules:
                legal = ", ".join(("auto", *offers.rules))
                raise ValueError(f"the engine {setup.engine} has no rule {setup.rule}; it takes {legal}")
        self.matrix.check_options()

    def open(self, setup: Setup) -> Engine:
        own = opened_for(setup)
        if own not in self._engines:
            self._make_room(own.engine)
            self._engines[own] = self._make(own)
        self._engines[own] = self._engines.pop(own)  # the last one used stands last
        return self._engines[own]

    def speculation(self, setup: Setup) -> Speculation:
        """What a request says for itself; the rest was said when its engine was opened."""
        if setup.plain or not _switches(setup):
            return Speculation()
        return Speculation(depth=setup.depth)

    def draft_alone(self, setup: Setup, prompt: str, tokens: int = 32) -> float | None:
        """Tokens per second of the draft model by itself in the same engine; None where no model drafts."""
        key = setup.engine, setup.drafter
        if key not in self._alone:
            self._alone[key] = self._draft_speed(setup, prompt, tokens)
        return self._alone[key]

    def close(self) -> None:
        self._leave(0)
        self._target = None

    @contextmanager
    def explain_memory_errors(self, setup: Setup) -> Iterator[None]:
        """Turn an error for lack of memory into one sentence that says what helps."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            words = (str(error).splitlines() or ["MemoryError"])[0].rstrip(". ")
            helps = "a smaller model may" if self.hold == 1 else "--hold 1, which keeps one engine open at a time, may"
            raise ValueError(f"there is not memory enough for {setup.title} ({words}); {helps} help") from error

    def _make_room(self, engine: str) -> None:
        """Room for one more; the native target goes with the last engine that ran it, unless the next one does."""
        if self.hold is None:
            return
        self._leave(self.hold - 1)
        if engine != "native" and all(own.engine != "native" for own in self._engines):
            self._target = None
        release_memory()

    def _leave(self, count: int) -> None:
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
        rule = setup.rule or OWN_RULE.get(setup.engine)
        return open_engine(setup.engine, model, setup.drafter, rule, setup.depth, options, **loading)

    def _draft_speed(self, setup: Setup, prompt: str, tokens: int) -> float | None:
        offers = engines.get(setup.engine).capabilities
        if kind_of(setup, offers.drafters) != "draft_model":
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
    """What is opened for a setup: where requests choose their depth, one engine for all depths."""
    if setup.plain or not _switches(setup):
        return setup
    return Setup(setup.engine, setup.drafter, None, setup.rule)


def kind_of(setup: Setup, legal: Collection[str]) -> str:
    """A drafter's kind: its own name where the engine knows it, `draft_model` where it is a model."""
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
