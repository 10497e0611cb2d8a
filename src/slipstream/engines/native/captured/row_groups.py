"""Which rows share a captured cycle: those with one drafter and one rule, and greedy rows beside sampled ones.

Requests of a server have different temperatures. Greedy rows and sampled ones have different rules, but a cycle of a
sampling rule verifies a row of temperature 0 as the greedy rule does. One cycle for all rows costs half of two.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from slipstream.core.device import DeviceProcessor, DeviceRule, DeviceVerdict
from slipstream.core.interfaces import Verifier
from slipstream.core.types import Row
from slipstream.drafters.device.interface import DeviceDrafter
from slipstream.engines.job import Job


class RowGroup(NamedTuple):
    """The rows of one cycle. `rule` verifies all of them; rows of another rule are greedy and come last."""

    drafter: str
    rule: str
    jobs: list[Job]


def row_groups(jobs: Iterable[Job], verifier: Callable[[str], Verifier]) -> list[RowGroup]:
    """Groups of rows that share a cycle, in the order of their drafters and rules."""
    found: dict[tuple[str, str, bool], RowGroup] = {}
    for job in sorted(jobs, key=_kind):
        found.setdefault(_kind(job), RowGroup(*job.drafter_and_rule, [])).jobs.append(job)
    for kind, group in list(found.items()):
        if verifier(group.rule).greedy and not _branches(group.jobs):
            hosts = [other for other in found.values() if other.drafter == group.drafter and _hosts(other, verifier)]
            if hosts:
                max(hosts, key=lambda host: len(host.jobs)).jobs.extend(found.pop(kind).jobs)
    return list(found.values())


def takes_greedy_rows(rule: DeviceRule) -> bool:
    """Whether cycles of a sampling rule verify rows of temperature 0 as the greedy rule does, if they draft chains."""
    return (
        rule.chains
        and not rule.greedy
        and rule.verdict
        in (
            DeviceVerdict.MATCH,
            DeviceVerdict.TOKEN,
            DeviceVerdict.BLOCK,
        )
    )


def _hosts(group: RowGroup, verifier: Callable[[str], Verifier]) -> bool:
    rule = verifier(group.rule).device_rule
    return rule is not None and takes_greedy_rows(rule) and not _branches(group.jobs)


def _branches(jobs: Sequence[Job]) -> bool:
    """Whether some row asks for a tree."""
    return any(job.plan.shape is not None for job in jobs)


def _kind(job: Job) -> tuple[str, str, bool]:
    """What rows of one cycle share: the drafter, the rule, and whether they want log-probabilities of trees, which are
    not recorded."""
    return (*job.drafter_and_rule, job.plan.shape is not None and job.top is not None)


def processing(row: Row) -> Hashable:
    """What rows must have in common to share a cycle: the settings of their logits processor."""
    processor = row.request.processor
    return processor.device_settings if isinstance(processor, DeviceProcessor) else None


def mixed(rows: Sequence[Row], rule: DeviceRule) -> bool:
    """Whether greedy rows are among sampled ones. Trees of these are ranked by noise."""
    return not rule.greedy and any(row.request.sampling.temperature == 0 for row in rows)


def alike(rows: Sequence[Row], device: DeviceDrafter) -> bool:
    """Whether one cycle can shape the laws of all rows."""
    if all(row.request.processor is None for row in rows):
        return True
    return device.whole_vocabulary and len({processing(row) for row in rows}) == 1
