"""The verification rules by name.

A rule with options is written `name(option=value)`, such as `lenient(factor=1.5)`. Everything that takes a rule's name
takes this form as well, and shows it in outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.core.registry import Registry, read_options
from slipstream.core.spec import parse_spec, spec_name

if TYPE_CHECKING:  # the command line names the rules in its help, without loading torch
    from slipstream.core.interfaces import Verifier


class RuleRegistry(Registry["Verifier"]):
    """A registry whose names may carry options."""

    def get(self, name: str) -> type[Verifier]:
        """The class of a rule, with or without options."""
        return super().get(spec_name(name) if isinstance(name, str) else name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(spec_name(name) if isinstance(name, str) else name)

    def lossless(self) -> list[str]:
        """The names of the rules that keep the target's distribution."""
        return [name for name in self.names() if self.get(name).lossless]

    def make(self, spec: str, **more: Any) -> Verifier:
        """The rule with its options; `more` are further ones. ValueError for unknown names, options and values."""
        kind, (name, options) = self.get(spec), parse_spec(spec)
        if not options and not more:
            return kind()
        if not hasattr(kind, "__dataclass_fields__"):
            raise ValueError(f"the rule {name} has no option {next(iter(options))!r}; it takes none")
        return read_options(kind, options | more, f"the rule {name}")


rules = RuleRegistry(
    "rule",
    {
        "greedy": "slipstream.core.verify.match:Greedy",
        "token": "slipstream.core.verify.token:Token",
        "block": "slipstream.core.verify.block:Block",
        "coupled": "slipstream.core.verify.match:Coupled",
        "chosen": "slipstream.core.verify.tree:Chosen",
        "replace": "slipstream.core.verify.tree:Replace",
        "no_replace": "slipstream.core.verify.tree:NoReplace",
        "spectr": "slipstream.core.verify.spectr:SpecTr",
        "cascade_chow": "slipstream.core.lossy.cascade:ChowCascade",
        "cascade_difference": "slipstream.core.lossy.cascade:DifferenceCascade",
        "cascade_tv": "slipstream.core.lossy.cascade:TotalVariationCascade",
        "cascade_token": "slipstream.core.lossy.cascade:TokenCascade",
        "typical": "slipstream.core.lossy.accept:Typical",
        "lenient": "slipstream.core.lossy.accept:Lenient",
        "bild": "slipstream.core.lossy.accept:Bild",
    },
)
