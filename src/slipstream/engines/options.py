"""The options of a request other than its prompt and its sampling: limits, stops, constraints, speculation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from slipstream.core.checks import boolean, integer, integers, shown, strings
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.plan.policy.tree_shapes import parse

SAMPLES = 4096  # maximum number of samples of one request


@dataclass(frozen=True)
class Speculation:
    """The speculation settings of one request. None means the engine's own setting; `off=True` is plain decoding."""

    off: bool = False
    drafter: str | None = None
    depth: int | None = None
    verify: str | None = None  # the rule; if the engine names none either, chosen by seed and tree (`choose_rule`)
    shape: Shape | str | int | None = None  # a tree: 24 nodes, "4x2x1" by level, "-1,-1,0" by parents
    history: bool = True  # a drafter that remembers outputs (`suffix`) may read and add to those of the same tenant

    def __post_init__(self) -> None:
        for name in ("off", "history"):
            object.__setattr__(self, name, boolean(name, getattr(self, name)))
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
    """The options of a request other than its prompt and its sampling."""

    max_tokens: int = 128
    min_tokens: int = 0
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    stop_token_ids: frozenset[int] = frozenset()  # in addition to the model's own end tokens
    ignore_eos: bool = False  # continue after the model's own end tokens
    logprobs: int | None = None  # report log-probabilities of each token and of so many most probable ones
    n: int = 1  # samples of one seed
    grammar: str | None = None  # EBNF rules with a `root`; at most one of grammar, json_schema and regex
    json_schema: Mapping[str, Any] | bool | None = None  # a JSON schema, or True for any JSON
    regex: str | None = None  # the whole text must match it
    speculation: Speculation = field(default_factory=Speculation)
    raw: bool = False  # no chat template
    prompt_logprobs: int | None = None  # as `logprobs`, for the tokens of the prompt
    tenant: str = ""  # whose request it is: an engine of ours shares its rows fairly between tenants
    prediction: str | Sequence[str | None] | None = None  # the expected output; one for all prompts, or one for each

    def __post_init__(self) -> None:
        self._coerce()
        if not 1 <= self.n <= SAMPLES:
            raise ValueError(f"n is {self.n}; it must be between 1 and {SAMPLES}")
        for name, top in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if top is not None and not 0 <= top <= 100:
                raise ValueError(f"{name} is {top}; it must be between 0 and 100")
        if "" in self.stop:
            raise ValueError("a stop string is empty; leave it out")
        self._check_constraint()
        self._check_prediction()
        if not isinstance(self.tenant, str):
            raise ValueError(f"tenant is {shown(self.tenant)}; it must be a name")
        if not isinstance(self.speculation, Speculation):
            raise ValueError(f"speculation is {shown(self.speculation)}; it must be Speculation(depth=…, drafter=…, …)")

    @property
    def constraint(self) -> tuple[str, Any] | None:
        """The name and the value of the option that constrains the text; None if there is none."""
        values = ((name, getattr(self, name)) for name in ("grammar", "json_schema", "regex"))
        return next(((name, value) for name, value in values if value is not None), None)

    def predictions(self, prompts: int) -> list[str | None]:
        """The prediction of each prompt. An empty one counts as none."""
        if isinstance(self.prediction, str | None):
            return [self.prediction or None] * prompts
        if len(self.prediction) != prompts:
            raise ValueError(
                f"there are {prompts} prompts and {len(self.prediction)} predictions; give one, or one for each"
            )
        return [text or None for text in self.prediction]

    def _check_prediction(self) -> None:
        several = isinstance(self.prediction, list | tuple)
        for text in self.prediction if several else [self.prediction]:  # type: ignore[union-attr]
            if not isinstance(text, str | None):
                raise ValueError(f"prediction is {shown(text)}; it must be a string, or a list with one per prompt")

    def _check_constraint(self) -> None:
        given = [name for name in ("grammar", "json_schema", "regex") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; a text is constrained by one of them")
        if not isinstance(self.grammar, str | None):
            raise ValueError(f"grammar is {shown(self.grammar)}; it must be a string of EBNF rules with a root")
        if not isinstance(self.regex, str | None):
            raise ValueError(f"regex is {shown(self.regex)}; it must be a regular expression as a string")
        if self.json_schema is not None and self.json_schema is not True and not isinstance(self.json_schema, Mapping):
            raise ValueError(
                f"json_schema is {shown(self.json_schema)}; it must be a schema as a dictionary, or True for any JSON"
            )
        if self.ignore_eos and given:
            raise ValueError(f"ignore_eos is on, and {given[0]} ends the text at an end token; leave one of them out")

    def _coerce(self) -> None:
        """Convert every field to its declared type, or raise ValueError with its name."""
        values: dict[str, Any] = {
            name: integer(name, getattr(self, name)) for name in ("max_tokens", "min_tokens", "n")
        }
        values |= {name: boolean(name, getattr(self, name)) for name in ("ignore_eos", "raw")}
        values["stop"] = strings("stop", self.stop)
        stop_ids = () if self.stop_token_ids is None else integers("stop_token_ids", self.stop_token_ids)
        values["stop_token_ids"] = frozenset(stop_ids)
        for name in ("logprobs", "prompt_logprobs"):
            values[name] = None if getattr(self, name) is None else integer(name, getattr(self, name))
        values["speculation"] = Speculation() if self.speculation is None else self.speculation
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def of(options: Mapping[str, Any]) -> GenerationOptions:
        """Make options from keyword arguments. An unknown name raises ValueError with the legal names."""
        legal = [option.name for option in fields(GenerationOptions)]
        for name in options:
            if name in legal:
                continue
            if name in (parameter.name for parameter in fields(Sampling)):
                raise ValueError(f"{name} is a parameter of sampling; pass it as ss.Sampling({name}=…)")
            near = get_close_matches(name, legal, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"there is no option {name!r}; a request takes {', '.join(legal)}{hint}")
        return GenerationOptions(**options)


def checked(sampling: Sampling | None, options: GenerationOptions | None) -> tuple[Sampling, GenerationOptions]:
    """The sampling and the options of a request, with defaults for None. ValueError for other types."""
    sampling = Sampling() if sampling is None else sampling
    options = GenerationOptions() if options is None else options
    if not isinstance(sampling, Sampling):
        raise ValueError(f"sampling is {shown(sampling)}; it must be Sampling(temperature=…, seed=…, …)")
    if not isinstance(options, GenerationOptions):
        raise ValueError(f"options is {shown(options)}; it must be GenerationOptions(max_tokens=…, stop=…, …)")
    return sampling, options
