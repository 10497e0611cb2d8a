"""What the drafter registry knows, for the check of plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict

from slipstream.core.tree import Siblings
from slipstream.drafters import drafters
from slipstream.drafters.build import drafter_kind
from slipstream.drafters.files.shipped import shipped
from slipstream.models.sources.folder import read_json
from slipstream.plan.ir.build import build_plan
from slipstream.plan.ir.nodes import Plan, Value


class DrafterCatalogue:
    """The registered drafters (`plan.ir.catalogue.Catalogue`)."""

    @property
    def drafters(self) -> Collection[str]:
        return drafters

    def siblings(self, kind: str) -> frozenset[Siblings]:
        return drafters.get(kind).siblings

    def reads_target(self, kind: str) -> bool:
        return drafters.get(kind).reads_target

    def defaults(self, kind: str) -> Mapping[str, Value]:
        return asdict(drafters.get(kind).options_type())

    def check_options(self, kind: str, options: Mapping[str, Value]) -> None:
        self.typed(kind, options)

    def typed(self, kind: str, options: Mapping[str, Value]) -> dict[str, Value]:
        """The given options with the types of their fields."""
        values = drafters.get(kind).read_options(options, kind)
        return {key: getattr(values, key, given) for key, given in options.items()}  # `staged` has options of stages

    def trained_for(self, kind: str, options: Mapping[str, Value]) -> str | None:
        folder = shipped().get(str(options.get("model")))
        target: str | None = read_json(folder / "config.json").get("target") if folder else None
        return target


def candidates(model: str) -> dict[str, dict[str, Value]]:
    """The drafters that are worth a try for a model without training: `ngram`, and those that are shipped for it."""
    kinds: dict[str, dict[str, Value]] = {"ngram": {}}
    for name, folder in shipped().items():
        if read_json(folder / "config.json").get("target") == model:
            kinds[drafter_kind(name)] = {}
    return kinds


def plan_of_flags(model: str, drafter: str, options: Mapping[str, Value], **arguments: object) -> Plan:
    """The plan of flags. `drafter`: a registered kind, a trained drafter, or the name of a draft model."""
    kind = drafter_kind(drafter)
    given = {"model": drafter, **options} if kind != drafter else dict(options)
    typed = DrafterCatalogue().typed(kind, given)
    return build_plan(model, kind, options=typed, **arguments)  # type: ignore[arg-type]
