"""The flags that describe a plan, and the plan that they give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as flags

if TYPE_CHECKING:
    from slipstream.plan.ir.nodes import Plan

PlanSource = Annotated[
    str | None, typer.Option("--plan", metavar="FILE|NAME", help="A plan file, or the name of a plan of slipstream.")
]
IN_PLAN = ("model", "drafter", "verify", "depth", "tree", "option", "dtype", "device", "invariant", "trust_remote_code")
NAMES = {"model": "-m", "drafter": "-d", "option": "-o"}


@dataclass(frozen=True)
class PlanFlags:
    """A plan: a file or a name, or the flags of `generate`."""

    file: Annotated[
        str | None, typer.Argument(metavar="[FILE|NAME]", help="A plan file or name; without it, the flags below.")
    ] = None
    model: flags.ModelName = "smollm2-135m"
    drafter: flags.DrafterName = "ngram"
    verify: flags.AnyRule = None
    depth: flags.Depth = None
    tree: flags.Shape = None
    option: flags.Settings = None
    dtype: flags.Dtype = "auto"
    device: flags.Device = "auto"
    invariant: flags.Invariant = None
    trust_remote_code: flags.TrustRemoteCode = False

    def plan(self) -> Plan:
        """The checked plan."""
        from slipstream.engines.drafter_catalogue import DrafterCatalogue, plan_of_flags
        from slipstream.plan.ir.check import check_plan
        from slipstream.plan.ir.library import load_plan

        if self.file is not None:
            refuse_beside_plan()
            return check_plan(load_plan(self.file), DrafterCatalogue(), self.file)
        loading: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        loading |= {"invariant": self.invariant, "trust_remote_code": self.trust_remote_code}
        options = flags.settings(self.option)
        how: dict[str, Any] = {"verify": self.verify, "depth": self.depth, "shape": self.tree}
        plan = plan_of_flags(self.model, self.drafter, options, **how, **loading)
        return check_plan(plan, DrafterCatalogue())


def refuse_beside_plan() -> None:
    """Raise ValueError if a flag was given that a plan states as well."""
    import click

    context = click.get_current_context()
    for name in IN_PLAN:
        if name in context.params and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            flag = NAMES.get(name, f"--{name.replace('_', '-')}")
            raise ValueError(f"a plan and {flag} are both given; the plan says all of it, so leave {flag} out")
