"""Device rules: what a verification rule declares so that a captured cycle can run it.

A captured cycle drafts, scores, verifies and commits on the GPU without the host. It knows a few ways to verify. A rule
names one of them in its `device` attribute. A rule without one takes the ordinary path, as does a drafter whose
`device_form` is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
