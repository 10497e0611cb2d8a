"""The profile that an engine starts with: the one that was given, or the one in the cache that belongs to its model."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from slipstream.core.checks import shown
from slipstream.core.interfaces import Drafter, Policy
from slipstream.kernels.machine import warn
from slipstream.models.target import Target
from slipstream.plan.policy.policy_seed import PolicySeed
from slipstream.plan.profile.key import ProfileKey
from slipstream.plan.profile.profile import Profile
from slipstream.plan.profile.store import default_path, may_have_profile, read_profile, write_profile

OFF = "none"


def find_profile(given: Profile | str | PathLike[str] | None, target: Target) -> Profile | None:
    """The profile of a target. None: that of the cache, if there is one that fits. "none": no profile."""
    if given == OFF:
        return None
    if given is None:
        if not may_have_profile(target.files.name):
            return None
        path = default_path(ProfileKey.of(target))
        try:
            return read_profile(path) if path.is_file() else None
        except ValueError as error:  # nobody asked for it
            warn(f"{error}; it is not used")
            return None
    if isinstance(given, Profile):
        if (clause := ProfileKey.of(target).why_not(given.key)) is not None:
            raise ValueError(f"the profile is {clause}; make one with slipstream profile")
        return given
    if not isinstance(given, str | PathLike):
        raise ValueError(f"profile is {shown(given)}; it must be a Profile, a file, or none")
    return read_profile(Path(given), ProfileKey.of(target))


def seed_policy(policy: Policy, profile: Profile | None, name: str, drafter: Drafter) -> None:
    """Let a policy start with what a profile knows of its drafter."""
    seed = profile.seeds.get(name) if profile else None
    if seed is not None:
        policy.seed(drafter, seed)


def save_learned(
    given: Profile | str | PathLike[str] | None, target: Target, name: str, learned: PolicySeed | None
) -> Path | None:
    """Add what a policy has learnt to the profile of its target. Returns the file; None if there was nothing."""
    if learned is None or learned.rate is None:
        return None
    key = ProfileKey.of(target)
    path = Path(given) if isinstance(given, str | PathLike) and given != OFF else default_path(key)
    profile = read_profile(path, key) if path.is_file() else Profile(key)
    write_profile(path, profile.with_seed(name, learned))
    return path
