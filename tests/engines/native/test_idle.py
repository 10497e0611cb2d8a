"""A drafter that drafts nothing costs nothing: it is neither asked nor told until the policy drafts again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import batches
from batches import PAIR
from slipstream.core.interfaces import Policy
from slipstream.core.sampling import Sampling
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.table import TableDrafter

REQUEST = Request([0, 1, 2], Sampling(seed=3), 12)


class Counted(TableDrafter):
    def __init__(self) -> None:
        super().__init__(PAIR.draft)
        self.calls: list[str] = []

    def propose(self, rows, budget, noise):
        self.calls.append("propose")
        return super().propose(rows, budget, noise)

    def observe(self, rows, verdict, scores):
        self.calls.append("observe")


class Script(Policy):
    """Depths by cycle, and 0 from then on."""

    def __init__(self, *depths: int) -> None:
        self.depths = [*depths]

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [Budget(self.depths.pop(0) if self.depths else 0)] * len(rows)


def test_a_sleeping_drafter_is_neither_asked_nor_told():
    drafter = Counted()
    batch = batches.batch(policy=Script(), drafters={"counted": drafter})
    job = batches.send(batch, REQUEST, "counted", depth=None)
    batch.step()
    assert drafter.calls == ["propose", "observe"], "in its first cycle, so that it may read the prompt"
    batches.finish(batch)
    assert drafter.calls == ["propose", "observe"]
    assert job.stats.cycles == 12


def test_it_wakes_when_it_is_to_draft_and_sleeps_again():
    drafter = Counted()
    batch = batches.batch(policy=Script(0, 0, 0, 2, 0), drafters={"counted": drafter})
    job = batches.send(batch, REQUEST, "counted", "coupled", depth=None)
    counts = []
    for _ in range(6):
        batch.step()
        counts.append(drafter.calls.count("propose"))
    assert counts == [1, 1, 1, 2, 2, 2]
    assert drafter.calls == ["propose", "observe"] * 2
    batches.finish(batch)
    assert sum(job.stats.drafted) == 2
    assert job.row.output == batches.alone(batches.Job(REQUEST, batches.DecodingPlan("none", "coupled", 0))).output


@pytest.mark.parametrize("depth", [None, 2])
def test_one_row_that_drafts_keeps_the_drafter_of_its_group_awake(depth):
    drafter = Counted()
    batch = batches.batch(policy=Script(), drafters={"counted": drafter})
    jobs = [batches.send(batch, REQUEST, "counted", depth=each) for each in (None, depth)]
    cycles = 0
    while not all(job.done for job in jobs):
        batch.step()
        cycles += not jobs[1].done
    assert (drafter.calls.count("propose") > 2) == (depth is not None)
