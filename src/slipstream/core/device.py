"""What a captured cycle is: how it verifies, how much it drafts, and the key it is found by.

A captured cycle drafts, scores, verifies and commits on the GPU without the host. It knows a few ways to verify. A rule
names one of them in its `device_rule`. A rule without one takes the ordinary path, as does a drafter whose
`device_form` is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from slipstream.core.tree import Shape
from slipstream.core.types import Budget


class DeviceVerdict(Enum):
    """How drafted tokens are verified on the device."""

    MATCH = "match"  # accept while the draft equals the target's own choice at each slot
    TOKEN = "token"  # rejection sampling, token by token (arXiv 2302.01318)
    BLOCK = "block"  # block verification (arXiv 2403.10444)
    OFFER = "offer"  # candidates that were picked, not drawn, are offered one after the other


@dataclass(frozen=True, eq=False)  # compared by identity: it is part of the key of every captured graph
class DeviceRule:
    """`shared`: draft and target race on the same noise. `greedy`: the rule needs temperature 0."""

    verdict: DeviceVerdict
    greedy: bool = False
    shared: bool = False
    chains: bool = True
    trees: bool = False

    def __post_init__(self) -> None:
        _RULES.setdefault(self.to_json(), self)

    def to_json(self) -> tuple[str | bool, ...]:
        verdict, *flags = astuple(self)
        return (verdict.value, *flags)

    @staticmethod
    def from_json(saved: Sequence[Any]) -> DeviceRule:
        """The rule of a verifier with these properties."""
        verdict, *flags = saved
        return _RULES.get(tuple(saved)) or DeviceRule(DeviceVerdict(verdict), *flags)


_RULES: dict[tuple[str | bool, ...], DeviceRule] = {}


class DraftSize(NamedTuple):
    """The largest draft of a cycle, rounded up to the sizes that graphs are captured for. No nodes: a chain."""

    depth: int
    width: int = 1
    nodes: int = 0

    @property
    def slots(self) -> int:
        """Drafted tokens of a row in the target's pass."""
        return self.nodes or self.depth

    @property
    def places(self) -> int:
        """Cache places beyond the committed ones: of the target, or of the head, which keeps all nodes it ran."""
        return max(self.slots, self.depth * self.width)

    def holds(self, other: DraftSize) -> bool:
        """Whether a graph of this size can run drafts of the other size."""
        alike = bool(self.nodes) == bool(other.nodes)
        return alike and self.depth >= other.depth and self.width >= other.width and self.nodes >= other.nodes

    @property
    def budget(self) -> Budget:
        return Budget(self.depth, shape=Shape(nodes=self.nodes, width=self.width) if self.nodes else None)


class SizeOption(NamedTuple):
    """A size that the coming cycle may have, the seconds such a cycle takes, and whether it is captured already."""

    size: DraftSize
    seconds: float
    captured: bool = True


class SizeMenu(NamedTuple):
    """Sizes that the coming cycle may have; the first drafts nothing. `delay`: seconds before drafting can begin."""

    options: Sequence[SizeOption]
    delay: float = 0.0


@runtime_checkable
class RowResult(Protocol):
    """What a captured cycle brought one row."""

    @property
    def tokens(self) -> Sequence[int]:
        """The drafted tokens."""

    @property
    def emitted(self) -> Sequence[int]:
        """The accepted tokens and the one after them."""

    @property
    def judged(self) -> Sequence[tuple[int, int]]:
        """Of each slot along the accepted path that had candidates: the accepted one's rank, -1 for none; their
        number."""


class GraphKey(NamedTuple):
    """What a captured graph is made for. `parts`: of the cache that attention reads. `cut`: rows may ask for top-k,
    top-p or min-p. Keys are looked up several times per cycle, so they are tuples."""

    rows: int
    size: DraftSize
    rule: DeviceRule
    parts: int
    cut: bool = False

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
        return [self.rows, list(self.size), list(self.rule.to_json()), self.parts, self.cut]

    @staticmethod
    def from_json(saved: Sequence[Any]) -> GraphKey:
        rows, size, rule, parts, cut = saved
        return GraphKey(rows, DraftSize(*size), DeviceRule.from_json(rule), parts, cut)


def power(number: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (number - 1).bit_length()
