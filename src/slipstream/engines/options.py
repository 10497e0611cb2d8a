"""What a request asks for besides its prompt: limits, stops, and how it is sped up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from slipstream.core.checks import boolean, integer, integers, shown, strings
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.plan.tree_shapes import parse

GRAMMARS = '{"json": a schema, or True for any JSON}, {"regex": a pattern} or {"ebnf": rules from root on}'
SAMPLES = 4096  # of one request, at most


@dataclass(frozen=True)
class Speculation:
    """How one request is sped up; None means as the engine was built. `Speculation(off=True)` is plain decoding."""

    off: bool = False
    drafter: str | None = None
    depth: int | None = None
    verify: str | None = None  # and where the engine names no rule either: by seed and tree (`choose_rule`)
    shape: Shape | str | int | None = None  # a tree: 24 nodes, "4x2x1" by level, "-1,-1,0" by parents

    def __post_init__(self) -> None:
        object.__setattr__(self, "off", boolean("off", self.off))
        for name in ("drafter", "verify"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ValueError(f"{name} is {shown(value)}; it must be a name, or None for the engine's own")
        if self.shape is not None:
            object.__setattr__(self, "shape", parse(self.shape))
        if self.depth is not None:
            object.__setattr__(self, "depth", integer("depth", self.depth))
        if self.depth is not None and self.depth < 0:
            raise ValueError(f"depth is {self.depth}; it must be 0 (plain decoding) or more")

    @property
    def tree(self) -> Shape | None:
        return None if self.shape is None else parse(self.shape)


@dataclass(frozen=True)
class GenerationOptions:
    """What a request asks for besides its prompt and its sampling."""

    max_tokens: int = 128
    min_tokens: int = 0
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    stop_tokens: frozenset[int] = frozenset()  # besides the model's own end tokens
    ignore_ends: bool = False  # go on past the model's own end tokens
    logprobs: int | None = None  # so many alternatives beside each token's own
    n: int = 1  # samples of one seed
    grammar: Mapping[str, Any] | None = None  # {"json": schema}, {"regex": …} or {"ebnf": …}
    raw: bool = False  # no chat template
    speculation: Speculation = field(default_factory=Speculation)

    def __post_init__(self) -> None:
        self._coerce()
        if not 1 <= self.n <= SAMPLES:
            raise ValueError(f"n is {self.n}; it must be between 1 and {SAMPLES}")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise ValueError(f"logprobs is {self.logprobs}; it must be between 0 and 100")
        if "" in self.stop:
            raise ValueError("a stop string is empty; leave it out")
        if self.grammar is not None and not isinstance(self.grammar, Mapping):
            raise ValueError(f"grammar is {shown(self.grammar)}; it must be {GRAMMARS}")
        if not isinstance(self.speculation, Speculation):
            raise ValueError(f"speculation is {shown(self.speculation)}; it must be Speculation(depth=…, drafter=…, …)")

    def _coerce(self) -> None:
        """Give every field its own type, or refuse it by name."""
        values: dict[str, Any] = {
            name: integer(name, getattr(self, name)) for name in ("max_tokens", "min_tokens", "n")
        }
        values |= {name: boolean(name, getattr(self, name)) for name in ("ignore_ends", "raw")}
        values["stop"] = strings("stop", self.stop)
        values["stop_tokens"] = frozenset(() if self.stop_tokens is None else integers("stop_tokens", self.stop_tokens))
        values["logprobs"] = None if self.logprobs is None else integer("logprobs", self.logprobs)
        values["speculation"] = Speculation() if self.speculation is None else self.speculation
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def of(options: Mapping[str, Any]) -> GenerationOptions:
        """The options of a call by name; an unknown one is refused with what is legal."""
        legal = [known.name for known in fields(GenerationOptions)]
        for name in options:
            if name in legal:
                continue
            if name in (known.name for known in fields(Sampling)):
                raise ValueError(f"{name} is a parameter of sampling; pass it as ss.Sampling({name}=…)")
            near = get_close_matches(name, legal, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"there is no option {name!r}; a request takes {', '.join(legal)}{hint}")
        return GenerationOptions(**options)


def checked(sampling: Sampling | None, wish: GenerationOptions | None) -> tuple[Sampling, GenerationOptions]:
    """What a request asks for, defaults filled in; ValueError where it is of another type."""
    sampling, wish = Sampling() if sampling is None else sampling, GenerationOptions() if wish is None else wish
    if not isinstance(sampling, Sampling):
        raise ValueError(f"sampling is {shown(sampling)}; it must be Sampling(temperature=…, seed=…, …)")
    if not isinstance(wish, GenerationOptions):
        raise ValueError(f"wish is {shown(wish)}; it must be GenerationOptions(max_tokens=…, stop=…, …)")
    return sampling, wish
