"""Flags that several verbs share. A verb takes a group as one parameter, and `with_groups` turns it into its flags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, get_type_hints

from slipstream.cli import options as given

if TYPE_CHECKING:
    from slipstream.core.sampling import Sampling


@dataclass(frozen=True)
class EngineFlags:
    """The engine, its model, and how it drafts and verifies."""

    model: given.ModelName = "smollm2-135m"
    engine: given.EngineName = "native"
    drafter: given.DrafterName = "ngram"
    verify: given.AnyRule = None
    depth: given.Depth = None


@dataclass(frozen=True)
class SamplingFlags:
    """The sampling parameters of a request."""

    temperature: given.Temperature = 0.0
    top_k: given.TopK = 0
    top_p: given.TopP = 1.0
    min_p: given.MinP = 0.0
    seed: given.Seed = None
    repetition_penalty: given.RepetitionPenalty = 1.0
    presence_penalty: given.PresencePenalty = 0.0
    frequency_penalty: given.FrequencyPenalty = 0.0

    def sampling(self) -> Sampling:
        """The parameters as the engines take them; wrong values raise ValueError."""
        from slipstream.core.sampling import Sampling  # which loads torch, and help does without

        return Sampling(**vars(self))


@dataclass(frozen=True)
class LoadingFlags:
    """How a model is loaded."""

    dtype: given.Dtype = "auto"
    device: given.Device = "auto"
    invariant: given.Invariant = None
    trust_remote_code: given.TrustRemoteCode = False


def with_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter whose type is a group by one parameter for each of the group's fields."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for parameter in signature(verb).parameters.values():
        if parameter.name in groups:
            parameters += _parameters(groups[parameter.name])
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]))

    @wraps(verb)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        verb(**values)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameters(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(group)
    ]
