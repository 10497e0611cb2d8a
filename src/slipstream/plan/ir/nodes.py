"""The nodes of a plan. Every node is a frozen dataclass; `Plan` is a name and a tuple of nodes.

A *definition* names a part: a model, a drafter, or drafters in stages. An *operation* is one step of the decoding
cycle: draft, guard, score, verify, route, commit. Operations refer to earlier nodes by name. Comments and positions
in a file belong to a node and do not count in comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

VERSION = 1

Value = str | int | float | bool | None
"""The value of an option."""


@dataclass(frozen=True)
class Position:
    """A line and a column of a plan file, both from 1."""

    line: int
    column: int


@dataclass(frozen=True, kw_only=True)
class PlanNode:
    """What all nodes have: comments, and the position in the file that it was read from."""

    word: ClassVar[str]  # the word for it in the text form and in JSON
    comments: tuple[str, ...] = field(default=(), compare=False)  # full lines before it
    remark: str = field(default="", compare=False)  # after it, on the same line
    position: Position | None = field(default=None, compare=False, repr=False)


def argument(default: Any, text: str) -> Any:
    """A `key=value` argument of a node. `text` is its description in the language reference."""
    return field(default=default, metadata={"help": text})


def operand(kind: str) -> Any:
    """An argument that names an earlier node, or the part that the node is about."""
    return field(metadata={"operand": kind})


@dataclass(frozen=True)
class ModelNode(PlanNode):
    """A model, by catalog name, Hugging Face id, folder or GGUF file."""

    word = "model"
    name: str
    model: str = operand("string")
    dtype: str = argument("auto", "auto, float32, bfloat16, float16, int8, fp8 or a8")
    device: str = argument("auto", "auto, cpu or cuda")
    context: int | None = argument(None, "most tokens of a request; none: the model's own limit")
    invariant: bool | None = argument(None, "results do not depend on other requests, to the bit; none: if it is free")
    trust_remote_code: bool = argument(False, "run Python code from the model's repository")
    tensor_parallel: int = argument(1, "processes that share each layer (vllm only)")
    pipeline_parallel: int = argument(1, "processes that share the layers (vllm only)")
    data_parallel: int = argument(1, "copies of the model (vllm only)")


@dataclass(frozen=True)
class DrafterNode(PlanNode):
    """A drafter of a registered kind, with its options. The text form is `name = kind(option=value, ...)`."""

    word = "drafter"
    name: str
    kind: str = operand("word")
    options: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", dict(sorted(self.options.items())))


@dataclass(frozen=True)
class StageNode(PlanNode):
    """Drafters in stages: each drafts for the next, the last one for the target (arXiv 2308.04623)."""

    word = "stage"
    name: str
    drafters: tuple[str, ...] = operand("drafters")


@dataclass(frozen=True)
class AdaptiveDepth:
    """A depth that a policy chooses in every cycle, from `low` to `high`. 0 is plain decoding."""

    low: int = 0
    high: int = 8
    policy: str = "adaptive"


ADAPTIVE = AdaptiveDepth()


@dataclass(frozen=True)
class DraftNode(PlanNode):
    """Draft tokens after the committed ones."""

    word = "draft"
    name: str
    drafter: str = operand("drafter")
    depth: int | AdaptiveDepth = argument(ADAPTIVE, "drafted tokens along one path: a number, or adaptive(0..8)")  # noqa: RUF009
    shape: str | None = argument(None, "a tree: 24 (nodes), 4x2x1 (by level) or -1,-1,0 (parents); none: a chain")
    overlap: bool = argument(False, "draft the next cycle while the target scores, in a thread or stream of its own")


@dataclass(frozen=True)
class GuardNode(PlanNode):
    """Shorten the chain in cycles where that is faster, down to plain decoding."""

    word = "guard"
    name: str
    draft: str = operand("draft")


@dataclass(frozen=True)
class ScoreNode(PlanNode):
    """One pass of the model over the drafted tokens. Without a draft: one token of plain decoding."""

    word = "score"
    name: str
    model: str = operand("model")
    draft: str | None = field(default=None, metadata={"operand": "draft"})


@dataclass(frozen=True)
class AutoRule:
    """A rule that is chosen for each request: one for requests with a seed, and another for the rest."""

    seeded: str = "coupled"
    other: str = "block"


@dataclass(frozen=True)
class VerifyNode(PlanNode):
    """Decide which drafted tokens are kept. At temperature 0 every rule is greedy."""

    word = "verify"
    name: str
    rule: str | AutoRule = operand("rule")  # noqa: RUF009
    scores: str = operand("scores")
    lossy: bool = argument(False, "allow a rule that changes the distribution of the output")


@dataclass(frozen=True)
class RouteNode(PlanNode):
    """A cascade: a small model answers where that suffices, and the cycle before this node elsewhere. Always lossy."""

    word = "route"
    name: str
    model: str = operand("model")
    verdict: str = operand("verdict")
    level: str = argument("request", "request: by the score of an answer; token: while the small model is confident")
    threshold: float = argument(0.5, "0: the small model alone; 1: the large model alone")
    score: str = argument("mean", "of an answer: mean, quantile(q=0.1), entropy(k=20) or agreement(n=5)")
    lossy: bool = argument(False, "must be true: a route changes the distribution of the output")


@dataclass(frozen=True)
class CommitNode(PlanNode):
    """Keep the verified tokens, and drop the rest of the draft. The last node of every plan."""

    word = "commit"
    verdict: str = operand("verdict")


DEFINITIONS: tuple[type[PlanNode], ...] = (ModelNode, DrafterNode, StageNode)
OPERATIONS: tuple[type[PlanNode], ...] = (DraftNode, GuardNode, ScoreNode, VerifyNode, RouteNode, CommitNode)


@dataclass(frozen=True)
class Plan:
    """A pipeline: named parts, and the steps of one decoding cycle."""

    name: str
    nodes: tuple[PlanNode, ...]
    version: int = VERSION
    heading: tuple[str, ...] = field(default=(), compare=False)  # comments before the first line
    comments: tuple[str, ...] = field(default=(), compare=False)  # comments after the last node

    def node(self, name: str) -> Any:
        """The node of that name. KeyError if there is none."""
        return next((node for node in self.nodes if getattr(node, "name", None) == name), None) or _missing(name)

    def one(self, kind: type[Any]) -> Any:
        """The only node of a kind, or None."""
        return next((node for node in self.nodes if isinstance(node, kind)), None)

    @property
    def target(self) -> ModelNode:
        """The model whose distribution the cycle has. A route has a second model."""
        target: ModelNode = self.node(self.one(ScoreNode).model)
        return target


def _missing(name: str) -> PlanNode:
    raise KeyError(name)


class PlanError(ValueError):
    """A plan that is malformed, illegal or pointless: one sentence, with line and column where they are known."""

    def __init__(self, message: str, position: Position | None = None, source: str = "plan") -> None:
        place = f"{source}:{position.line}:{position.column}: " if position else ""
        super().__init__(place + message)
        self.message, self.position = message, position
