"""Groups of flags that several commands share.

A command has a group as one parameter, and `with_groups` replaces it by the group's flags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, get_type_hints

from slipstream.cli import options as flags

if TYPE_CHECKING:
    from slipstream.core.sampling import Sampling


@dataclass(frozen=True)
class EngineFlags:
    """The engine, its model, and how it drafts and verifies."""

    model: flags.ModelName = "smollm2-135m"
    engine: flags.EngineName = "native"
    drafter: flags.DrafterName = "ngram"
    verify: flags.AnyRule = None
    depth: flags.Depth = None


@dataclass(frozen=True)
class SamplingFlags:
    """The sampling parameters of a request."""

    temperature: flags.Temperature = 0.0
    top_k: flags.TopK = 0
    top_p: flags.TopP = 1.0
    min_p: flags.MinP = 0.0
    seed: flags.Seed = None
    repetition_penalty: flags.RepetitionPenalty = 1.0
    presence_penalty: flags.PresencePenalty = 0.0
    frequency_penalty: flags.FrequencyPenalty = 0.0

    def sampling(self) -> Sampling:
        """The parameters for the engines. Wrong values raise ValueError."""
        from slipstream.core.sampling import Sampling  # here, because it imports torch, which `--help` does not need

        return Sampling(**vars(self))


@dataclass(frozen=True)
class LoadingFlags:
    """How a model is loaded."""

    dtype: flags.Dtype = "auto"
    device: flags.Device = "auto"
    invariant: flags.Invariant = None
    trust_remote_code: flags.TrustRemoteCode = False


@dataclass(frozen=True)
class ProfileFlags:
    """The profile that the policy starts with."""

    profile: flags.ProfileName = None
    learn: flags.Learn = False

    def arguments(self, engine: str) -> dict[str, Any]:
        """Arguments of the engine. Only the native engine takes them."""
        if engine == "native":
            return vars(self)
        if self.profile is not None or self.learn:
            raise ValueError(f"--profile and --learn need the native engine; {engine} has no policy")
        return {}


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter whose type is a group by one parameter for each of the group's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _parameters(groups[parameter.name])
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]))

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameters(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(group)
    ]
