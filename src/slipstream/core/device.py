"""What a captured cycle is: how it verifies, how much it drafts, and the key it is found by.

A captured cycle is a CUDA graph that drafts, scores, verifies and commits without the host. It implements the
verification methods of `DeviceVerdict`. A rule names its method in `device_rule`. Rows use the ordinary host loop
instead if their rule's `device_rule` or their drafter's `device_form` is None.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RECORDED_LOGPROBS = (0, 20)  # most probable tokens that captured cycles can record at each position


class DeviceVerdict(Enum):
    """How drafted tokens are verified on the device."""

    MATCH = "match"  # accept while the draft equals the target's own choice at each slot
    TOKEN = "token"  # rejection sampling, token by token (arXiv 2302.01318)
    BLOCK = "block"  # block verification (arXiv 2403.10444)
    OFFER = "offer"  # the candidates of a slot were chosen, not sampled; they are tried in order
    LOSSY = "lossy"  # a test that changes the output's law


class Draws(NamedTuple):
    """How the next tokens of a row are drawn: from which laws, by a rule, from a stream of draws (`Noise.stream`)."""

    sampling: Sampling
    verdict: DeviceVerdict  # MATCH: draft and target share the draws of each position
    stream: int


class LossyTest(NamedTuple):
    """A lossy rule: its kind, its two options (the second is 0 where there is none), and whether all draws are the
    largest probabilities."""

    kind: str
    options: tuple[float, float]
    argmax: bool

    @property
    def needs_draft(self) -> bool:
        """Whether every token needs the draft model's law, so that there is no bonus token: the cascades."""
        return self.kind in CASCADES


CASCADES = frozenset({"chow", "difference", "tv", "token"})


@dataclass(frozen=True, eq=False)  # compared by identity: it is part of the key of every captured graph
class DeviceRule:
    """How a rule runs in a captured cycle.

    `greedy`: the rule needs temperature 0. `shared`: draft and target sample with the same noise. `chains`, `trees`:
    the drafts it can verify. `lossy`: of the verdict LOSSY."""

    verdict: DeviceVerdict
    greedy: bool = False
    shared: bool = False
    chains: bool = True
    trees: bool = False
    lossy: LossyTest | None = None

    def __post_init__(self) -> None:
        _RULES.setdefault(self.to_json(), self)

    @property
    def argmax(self) -> bool:
        """Whether drafted tokens are the most probable ones of laws at the request's temperature."""
        return self.lossy is not None and self.lossy.argmax

    @property
    def needs_draft(self) -> bool:
        """Whether every cycle must draft, and has no bonus token."""
        return self.lossy is not None and self.lossy.needs_draft

    def to_json(self) -> tuple[str | float, ...]:
        lossy = () if self.lossy is None else (self.lossy.kind, *self.lossy.options, self.lossy.argmax)
        return (self.verdict.value, self.greedy, self.shared, self.chains, self.trees, *lossy)

    @staticmethod
    def from_json(saved: Sequence[Any]) -> DeviceRule:
        """The rule of a verifier with these properties."""
        if known := _RULES.get(tuple(saved)):
            return known
        verdict, greedy, shared, chains, trees, *lossy = saved
        kind, first, second, argmax = lossy or (None, 0.0, 0.0, False)
        test = None if kind is None else LossyTest(kind, (first, second), argmax)
        return DeviceRule(DeviceVerdict(verdict), greedy, shared, chains, trees, test)


_RULES: dict[tuple[str | float, ...], DeviceRule] = {}


@lru_cache(maxsize=256)
def lossy_rule(test: LossyTest) -> DeviceRule:
    """The rule of a lossy test. One object for each: it is part of the key of every captured graph."""
    return DeviceRule(DeviceVerdict.LOSSY, lossy=test)


class DraftSize(NamedTuple):
    """The largest draft of a cycle, rounded up to a size that graphs are captured for.

    `nodes` 0 means a chain of `depth` tokens. Otherwise a tree of at most `nodes` tokens, `width` of them per level."""

    depth: int
    width: int = 1
    nodes: int = 0

    @property
    def slots(self) -> int:
        """Drafted tokens per row in the target's forward pass."""
        return self.nodes or self.depth

    @property
    def places(self) -> int:
        """KV cache places per row beyond the committed tokens: the maximum of the target's and the draft head's need.

        The head keeps every node that it ran, also those that are not drafted in the end."""
        return max(self.slots, self.depth * self.width)

    def covers(self, other: DraftSize) -> bool:
        """Whether a graph of this size can run drafts of the other size."""
        same_kind = bool(self.nodes) == bool(other.nodes)
        return same_kind and self.depth >= other.depth and self.width >= other.width and self.nodes >= other.nodes

    @property
    def budget(self) -> Budget:
        return _budget(self)


@lru_cache(maxsize=1 << 10)
def _budget(size: DraftSize) -> Budget:
    """One object for each size: comparing the budgets of many rows with those of the last cycle is quick then."""
    return Budget(size.depth, shape=Shape(nodes=size.nodes, width=size.width) if size.nodes else None)


class SizeOption(NamedTuple):
    """A draft size for the next cycle, the predicted seconds of such a cycle, and whether its graph is captured.

    `barred`: there is no time to capture it now, so it cannot be chosen. `tail`: the seconds of such a cycle once three
    quarters of the rows have left; None: as many as before. `known`: if it is not captured, whether the seconds are
    those of cycles like it and no guess."""

    size: DraftSize
    seconds: float
    captured: bool = True
    barred: bool = False
    tail: float | None = None
    known: bool = False


def _not_counted(size: DraftSize, seconds: float) -> None:
    """What is missed is not counted."""


class SizeMenu(NamedTuple):
    """The draft sizes that are possible in the next cycle; the first option drafts nothing.

    `delay`: seconds until drafting can begin. `missed` is told how many seconds were lost because the best size was
    barred."""

    options: Sequence[SizeOption]
    delay: float = 0.0
    missed: Callable[[DraftSize, float], None] = _not_counted


@runtime_checkable
class RowResult(Protocol):
    """The outcome of a captured cycle for one row."""

    @property
    def tokens(self) -> Sequence[int]:
        """The drafted tokens."""

    @property
    def emitted(self) -> Sequence[int]:
        """The accepted tokens, and the recovered or bonus token after them."""

    @property
    def judged(self) -> Sequence[tuple[int, int]]:
        """(rank of the accepted candidate or -1, number of candidates) for each slot with candidates on the path."""


@runtime_checkable
class ChainResults(Protocol):
    """The outcome of a captured cycle that drafted chains, for all rows at once."""

    @property
    def drafted(self) -> NDArray[np.int64]:
        """The number of tokens that were drafted for each row."""

    @property
    def accepted(self) -> NDArray[np.int64]:
        """How many of these were accepted."""


@runtime_checkable
class DeviceProcessor(Protocol):
    """A logits processor that captured cycles can apply."""

    @property
    def device_settings(self) -> Hashable:
        """What rows of one cycle must have in common."""

    def row_state(self, tokens: Sequence[int]) -> list[int]:
        """The integers that a cycle needs of a row with these tokens."""

    def device_form(self, rows: int, width: int, vocab: int, device: Any) -> Any:
        """Its part of a captured cycle for so many rows and slots per row."""


class GraphKey(NamedTuple):
    """The shape and settings that a captured graph was made for.

    `parts`: number of KV cache parts that attention reads. `cut`: the graph applies top-k, top-p and min-p.
    `logprobs`: the number of most probable tokens it records beside the log-probability of each emitted token; None: it
    records none. A named tuple, because keys are looked up several times per cycle."""

    rows: int
    size: DraftSize
    rule: DeviceRule
    parts: int
    cut: bool = False
    logprobs: int | None = None

    @property
    def depth(self) -> int:
        return self.size.depth

    @property
    def width(self) -> int:
        return self.size.width

    @property
    def nodes(self) -> int:
        return self.size.nodes

    def to_json(self) -> list[Any]:
        recorded = [] if self.logprobs is None else [self.logprobs]
        return [self.rows, list(self.size), list(self.rule.to_json()), self.parts, self.cut, *recorded]

    @staticmethod
    def from_json(saved: Sequence[Any]) -> GraphKey:
        rows, size, rule, *rest = saved
        return GraphKey(rows, DraftSize(*size), DeviceRule.from_json(rule), *rest)


def next_power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()
