"""The counts of a request are folded when they are read, from any thread, and none is lost or counted twice."""

from __future__ import annotations

import threading

from slipstream.core.types import Origin, Request
from slipstream.engines.job import DecodingPlan, Job

CYCLES = 20_000


def test_counts_are_whole_however_many_threads_read_them_meanwhile():
    job = Job(Request([1, 2], max_tokens=1), DecodingPlan("eagle", "greedy", 2))
    assert job.undecoded() == [], "chunks are made from now on"
    over, seen = threading.Event(), []

    def read() -> None:
        while not over.is_set():
            seen.append(job.stats.cycles)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for n in range(CYCLES):
        accepted = n % 3
        job.emit([5] * (accepted + 1), [Origin.PLAIN] * (accepted + 1), counts=[(2, accepted, accepted + 1)])
    over.set()
    for reader in readers:
        reader.join()
    thirds = [len(range(n, CYCLES, 3)) for n in range(3)]
    assert (job.stats.cycles, job.stats.drafted) == (CYCLES, [CYCLES, CYCLES])
    assert job.stats.accepted == [thirds[1] + thirds[2], thirds[2]]
    assert job.stats.emitted == thirds[0] + 2 * thirds[1] + 3 * thirds[2]
    assert max(seen) <= CYCLES
    assert len(job.undecoded()) == CYCLES
