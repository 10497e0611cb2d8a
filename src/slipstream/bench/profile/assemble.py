"""Makes the profile of a target from its recorded runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slipstream.bench.journal import Journal
from slipstream.bench.profile.energy import measure_energy
from slipstream.bench.profile.measure import ProfileSettings, RecordedRun, run_all
from slipstream.bench.progress import progress
from slipstream.bench.workloads import load_workloads
from slipstream.drafters.build import drafter_kind
from slipstream.drafters.files.shipped import shipped, shipped_for
from slipstream.models.sources.catalog import names_model, resolve
from slipstream.models.sources.folder import weights_sha256
from slipstream.models.target import Target
from slipstream.plan.profile.cost_points import CycleCost, draft_points, target_points
from slipstream.plan.profile.energy import ProfileEnergy
from slipstream.plan.profile.key import ProfileKey
from slipstream.plan.profile.profile import Profile
from slipstream.plan.profile.rank_counts import RankCount, merged_counts
from slipstream.plan.profile.recorded_seed import seed_of
from slipstream.plan.profile.runs import PLAIN
from slipstream.plan.profile.store import default_path, read_profile, write_profile


def make_profile(
    target: Target, settings: ProfileSettings, path: Path | None = None, merge: Sequence[Path] = ()
) -> tuple[Profile, Path]:
    """Measure, merge and write the profile of a target. An interrupted one goes on where it was."""
    key = ProfileKey.of(target)
    others = [read_profile(other, key) for other in merge]
    path = path or default_path(key)
    if path.is_file():  # what it says of other drafters stays
        others.append(read_profile(path, key).without(settings.drafters))
    journal_folder = path.with_name(f".{path.name}.unfinished")
    with Journal(journal_folder) as journal:
        runs = run_all(target, settings, journal, key.to_json())
    profile = assembled(
        key, settings.drafters, runs, {name: drafter_sha256(name, target) for name in settings.drafters}
    )
    profile = replace(profile, energy=_energy(target, settings))
    for other in others:
        profile = other.merge(profile)
    write_profile(path, profile)
    shutil.rmtree(journal_folder, ignore_errors=True)
    return profile, path


def _energy(target: Target, settings: ProfileSettings) -> ProfileEnergy:
    items = [item for workload in load_workloads(settings.workload)[:1] for item in workload.items]
    depth, shown = settings.depths[len(settings.depths) // 2], len(settings.drafters) * (len(settings.batches) + 1)
    with progress(shown + len(settings.batches), 0) as say:
        return measure_energy(target, settings.drafters, depth, settings.batches, items, say)


def assembled(
    key: ProfileKey,
    drafters: Mapping[str, Mapping[str, Any]],
    recorded: Sequence[RecordedRun],
    hashes: Mapping[str, str | None],
) -> Profile:
    cycles: dict[str, list[CycleCost]] = {name: [] for name in (PLAIN, *drafters)}
    graphs: dict[str, dict[str, Any]] = {}
    for each in recorded:
        if not each.spec.tree:
            cycles[each.spec.drafter] += [CycleCost.from_json(cycle) for cycle in each.cycles]
        graphs[each.spec.drafter] = each.graphs or graphs.get(each.spec.drafter, {})
    counts = merged_counts(RankCount.from_json(count) for each in recorded for count in each.counts)
    chains = {each.spec.drafter: each for each in recorded if not each.spec.tree}
    seeds = {
        name: seed_of(
            [*cycles[PLAIN], *cycles[name]],
            [count for count in counts if count.drafter == name],
            graphs.get(PLAIN, {}) | graphs.get(name, {}),
        )
        for name in drafters
        if name in chains
    }
    told = [cycle for own in cycles.values() for cycle in own]
    host = sum(each.host for each in recorded if not each.spec.tree) / len(told) if told else None
    return Profile(
        key,
        tuple(each.run for each in recorded if each.run is not None),
        target_points(told),
        {name: draft_points(cycles[name]) for name in drafters},
        host,
        counts,
        hashes,
        seeds,
        datetime.now(UTC).isoformat(timespec="seconds"),
        " ".join(["slipstream", *sys.argv[1:]]),
    )


def drafter_sha256(name: str, target: Target) -> str | None:
    """The hash of a drafter's weights; None for a drafter without weights of its own."""
    folder = shipped().get(name) or shipped_for(drafter_kind(name), target.files.name, target.files.sha256)
    if folder is None and names_model(name):
        folder = resolve(name, trust_remote_code=target.trust_remote_code).path
    return None if folder is None else weights_sha256(folder)
