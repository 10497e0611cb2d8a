"""What the native engine is built from: its target, and the runner of captured cycles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.drafters.files.shipped import shipped
from slipstream.models.load_target import load_target
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.folder import read_json
from slipstream.models.target import Target

if TYPE_CHECKING:
    from slipstream.engines.native.captured.runner import CapturedRunner
    from slipstream.plan.policy.costs import CostModel


def build_target(name: str, *loading: Any, **named: Any) -> Target:
    """`load_target` for a name that a user gave. ValueError if it is a drafter's name."""
    if name in shipped():
        target_name = read_json(shipped()[name] / "config.json").get("target")
        raise ValueError(f"{name} is a drafter; use it with its target, -m {target_name} -d {name}")
    return load_target(name, *loading, **named)


def captured_runner(model: TorchModel, costs: CostModel | None) -> CapturedRunner | None:
    """The runner of captured cycles, if the model's passes on a GPU can be captured; otherwise None."""
    if model.device.type != "cuda":
        return None
    try:
        from slipstream.engines.native.captured.runner import CapturedRunner
        from slipstream.models.run.gpu.passes import GpuPasses
    except ImportError:  # no Triton
        return None
    return CapturedRunner(model, model.decoder, costs) if isinstance(model.decoder, GpuPasses) else None
