"""What a profile belongs to: the weights, how they are loaded, the machine, and the versions that measured it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from slipstream.kernels.machine import processor
from slipstream.models.sources.folder import weights_sha256
from slipstream.models.target import Target

FOREIGN = {"sha256": "another model", "form": "another form of the model", "machine": "another machine"}
STALE = {"slipstream": "another version of slipstream", "torch": "another version of torch"}


@dataclass(frozen=True)
class ProfileKey:
    """A profile is used only where its key is equal."""

    model: str  # the name that users gave, which is not compared
    sha256: str  # of the weights
    form: str  # type of the weights and device, such as bfloat16 on cpu
    machine: str  # processor or accelerator, and threads
    slipstream: str
    torch: str

    @staticmethod
    def of(target: Target) -> ProfileKey:
        """The key of a loaded target on this machine. It may have to read the weights."""
        files, model = target.files, target.model
        device = model.device.type
        place = torch.cuda.get_device_name(model.device) if device == "cuda" else processor()
        form = f"{target.label.partition(' ')[2].strip('()')} on {device}"
        sha256 = files.sha256 or weights_sha256(files.path)
        return ProfileKey(
            files.name, sha256, form, f"{place}, {torch.get_num_threads()} threads", own_version(), torch.__version__
        )

    def why_not(self, other: ProfileKey) -> str | None:
        """Why a profile with the other key does not belong here, as a clause; None if it does."""
        for name, what in (FOREIGN | STALE).items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                age = "stale: it is" if name in STALE else "foreign: it is"
                shown = [value[:12] if name == "sha256" else value for value in (theirs, mine)]
                return f"{age} of {what} ({shown[0]}; here {shown[1]})"
        return None

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256(repr([getattr(self, name) for name in (*FOREIGN, *STALE)]).encode()).hexdigest()[:16]
        return f"{slug(self.model)}-{digest}.json"

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> ProfileKey:
        return ProfileKey(**{field.name: str(saved[field.name]) for field in fields(ProfileKey)})


def slug(model: str) -> str:
    """A model's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rpartition("/")[2])


def own_version() -> str:
    try:
        return version("slipstream-lm")
    except PackageNotFoundError:  # run from a checkout that is not installed
        from slipstream import __version__

        return __version__
