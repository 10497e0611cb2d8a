"""The matrix engines × drafters × depths × rules × batches × temperatures × workloads, parsed into cells.

    -d none -d ngram --depth auto,2-4 --verify block,coupled --batch 1,8 --temperature 0,0.8 --workload code,chat

Equivalent cells are measured once: plain decoding has neither depth nor rule, and at temperature 0 every rule is
greedy. Plain decoding of every engine is always among the cells, because all others are compared with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

from slipstream.core.rules import rules
from slipstream.engines import engines
from slipstream.engines.cascade.request import RouteOptions
from slipstream.plan.ir.nodes import Plan
from slipstream.plan.ir.text import text_of
from slipstream.plan.lower.native import lower_native
from slipstream.plan.lower.routes import request_route

PLAIN = "none"
OWN_RULE = {"native": "block"}  # the meaning of `--verify auto`; other engines have their own rule


@dataclass(frozen=True)
class Setup:
    """One way to decode: the arguments of an engine."""

    engine: str
    drafter: str
    depth: int | None  # None: the engine's own choice; 0: plain decoding
    rule: str | None  # None: the engine's own choice
    plan: str | None = None  # the name of a plan that states all of it
    lossless: bool = True

    @property
    def plain(self) -> bool:
        return self.drafter == PLAIN

    @property
    def title(self) -> str:
        if self.plain:
            return f"{self.engine} plain"
        if self.plan is not None:
            return f"{self.engine} plan {self.plan}"
        depth = "" if self.depth is None else f" depth {self.depth}"
        return f"{self.engine} {self.drafter}{depth}{f' {self.rule}' if self.rule else ''}"


@dataclass(frozen=True)
class Cell:
    """One setup under one load."""

    setup: Setup
    batch: int
    temperature: float
    workload: str

    @property
    def rule(self) -> str:
        """The rule's name in reports."""
        if self.setup.plain:
            return "plain"
        return (
            "greedy"
            if self.temperature == 0 and self.setup.lossless
            else self.setup.rule or OWN_RULE.get(self.setup.engine, "own")
        )

    @property
    def load(self) -> tuple[int, float, str]:
        return self.batch, self.temperature, self.workload

    @property
    def title(self) -> str:
        return f"{self.setup.title}, {self.workload}, batch {self.batch}, temperature {self.temperature:g}"

    def key(self) -> dict[str, Any]:
        """The key of a record: the seven axes."""
        depth = "auto" if self.setup.depth is None else self.setup.depth
        load = {"batch": self.batch, "temperature": self.temperature, "workload": self.workload}
        drafter = f"plan {self.setup.plan}" if self.setup.plan else self.setup.drafter
        return {"engine": self.setup.engine, "drafter": drafter, "depth": depth, "rule": self.rule} | load


@dataclass(frozen=True)
class Matrix:
    """The arguments of the command line, each a list as the user wrote it."""

    engines: Sequence[str] = ("native",)
    drafters: Sequence[str] = (PLAIN, "ngram")
    depth: str = "auto"
    verify: str = "auto"
    batch: str = "1"
    temperature: str = "0"
    options: Mapping[str, str] = field(default_factory=dict)
    plans: Mapping[str, Plan] = field(default_factory=dict)  # measured besides the drafters, by name

    def cells(self, workloads: Sequence[str]) -> list[Cell]:
        """Every cell once, plain decoding first."""
        batches = numbers("batch", self.batch, least=1)
        loads = list(product(workloads, batches, temperatures(self.temperature)))
        cells = [Cell(_settled(setup, t), b, t, w) for w, b, t in loads for setup in self.setups()]
        return list(dict.fromkeys(cells))

    def setups(self) -> list[Setup]:
        for name in self.engines:
            engines.get(name)
        depths, chosen = _depths(self.depth), _rules(self.verify)
        plain = [Setup(engine, PLAIN, 0, None) for engine in self.engines]
        drafting = product(self._drafters(), depths, chosen)
        setups = [Setup(*who, depth, rule) for who, depth, rule in drafting if depth != 0 and who[1] != PLAIN]
        return list(dict.fromkeys(plain + setups + [_planned(plan) for plan in self.plans.values()]))

    def _drafters(self) -> Iterator[tuple[str, str]]:
        """Every drafter on every engine; `ENGINE:DRAFTER` is for that engine alone."""
        for word in self.drafters:
            engine, colon, drafter = word.partition(":")
            if colon and engine in engines.names():
                if engine not in self.engines:
                    raise ValueError(f"the drafter {word} is for an engine that is not measured; add --engine {engine}")
                yield engine, drafter
            else:
                yield from ((name, word) for name in self.engines)

    def options_of(self, setup: Setup) -> dict[str, str]:
        """`key=value` goes to every drafter, `name.key=value` to the drafter or the engine of that name."""
        if setup.plan is not None:
            plan = self.plans[setup.plan]
            options = {} if request_route(plan) else lower_native(plan).options
            return {key: str(value) for key, value in options.items()}
        own_options: dict[str, str] = {}
        for word, value in self.options.items():
            name, dot, key = word.rpartition(".")
            if name in (setup.engine, setup.drafter) if dot else not setup.plain:
                own_options[key] = value
        return own_options

    def check_options(self) -> None:
        """Raise ValueError for an option whose scope is not measured."""
        setups = self.setups()
        names = {name for setup in setups for name in (setup.engine, setup.drafter)} - {PLAIN}
        for word in self.options:
            scope, dot, _ = word.rpartition(".")
            if dot and scope not in names:
                raise ValueError(
                    f"option {word} is for {scope}, which is not measured; one of {', '.join(sorted(names))}"
                )

    def as_dict(self) -> dict[str, Any]:
        plans = {name: text_of(plan) for name, plan in self.plans.items()}
        own = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return own | {"engines": list(self.engines), "drafters": list(self.drafters), "plans": plans}


def _planned(plan: Plan) -> Setup:
    """The setup of a plan. A plan of plain decoding is plain decoding."""
    if (route := request_route(plan)) is not None:
        rule = RouteOptions(route.threshold, route.score).rule
        return Setup("native", "route", None, rule, plan.name, lossless=False)
    settings = lower_native(plan)
    if settings.plain:
        return Setup("native", PLAIN, 0, None)
    rule = settings.rule or settings.auto.other
    return Setup("native", settings.drafter, settings.depth, rule, plan.name, rules.get(rule).lossless)


def _settled(setup: Setup, temperature: float) -> Setup:
    """The setup without its rule at temperature 0, where rules do not differ."""
    if temperature == 0 and setup.rule is not None and setup.lossless:
        return replace(setup, rule=None)
    return setup


def _words(name: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ValueError(f"{name} is {text!r}; write values with commas between them")
    return words


def numbers(name: str, text: str, least: int) -> list[int]:
    """`1,4` or `2-5`, or both."""
    return [n for word in _words(name, text) for n in _range(name, word, least)]


def temperatures(text: str) -> list[float]:
    """`0,0.8`."""
    return [_temperature(word) for word in _words("temperature", text)]


def _range(name: str, word: str, least: int) -> range:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
    if match is None or int(match[1]) < least or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"{name} holds {word!r}; write numbers from {least} on, as 1,4 or 2-5")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def _depths(text: str) -> list[int | None]:
    depths: list[int | None] = []
    for word in _words("depth", text):
        depths += [None] if word == "auto" else _range("depth", word, 0)
    return depths


def _rules(text: str) -> list[str | None]:
    chosen: list[str | None] = []
    for word in _words("verify", text):
        if word != "auto" and not rules.get(word).lossless:
            raise ValueError(f"the rule {word} is lossy; measure it with --task, which grades the answers")
        chosen.append(None if word in ("auto", "greedy") else word)
    return chosen


def _temperature(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"temperature holds {word!r}; it must be 0 (greedy) or a positive number")
    return value
