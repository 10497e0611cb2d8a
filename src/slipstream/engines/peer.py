"""The base class of peers, the engines that run other software: requests become jobs, tokens become chunks.

A peer decodes with its own code and its own verification rule. This class does the rest, so that a request means the
same on every engine: it refuses features that the peer does not offer, encodes prompts and decodes text as the native
engine does, and applies end tokens, stop strings and limits.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from slipstream.core.checks import shown
from slipstream.core.loop import check_fits
from slipstream.core.registry import read_options
from slipstream.core.sampling import Sampling
from slipstream.core.types import Origin, Request
from slipstream.engines.base import (
    GenerationOptions,
    Guarantee,
    Logprob,
    ModelInfo,
    Speculation,
    SpeculationStats,
    check_process,
)
from slipstream.engines.checks import check_token_ids
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.job_engine import JobEngine
from slipstream.engines.peer_checks import check_drafter, check_rule, named_drafter, refuse
from slipstream.models.sources.load import ModelFiles
from slipstream.models.text.codec import TextCodec
from slipstream.models.weights.precision import EIGHT_BIT_ACTIVATIONS

RULE = "its own"


@dataclass(frozen=True)
class PeerOptions:
    """The arguments with which a peer is opened, after the checks that all peers share."""

    model: str
    drafter: str
    verify: str | None
    depth: int | None
    options: Any  # the peer's own config
    dtype: str
    device: str
    context: int | None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class PeerModel:
    """The model that a peer runs: files, tokenizer, sizes, and the default drafter and depth of requests."""

    files: ModelFiles
    text: TextCodec
    vocab: int
    context: int
    precision: str
    drafter: str
    depth: int | None


class Peer(JobEngine):
    """Decodes jobs with other software. `_open` loads the model, `_start` takes jobs, and `_stop` frees everything. The
    peer calls `advance` with new tokens and `end` when a job finishes."""

    name: ClassVar[str]
    config: ClassVar[type[Any]]  # a frozen dataclass of its options

    def __init__(
        self,
        model: str = "smollm2-135m",
        drafter: str | None = "ngram",
        verify: str | None = None,
        depth: int | None = None,
        *,
        options: Mapping[str, str] | None = None,
        dtype: str = "auto",
        device: str = "auto",
        context: int | None = None,
        invariant: bool = False,
        trust_remote_code: bool = False,
    ) -> None:
        self._pid = os.getpid()
        if not isinstance(model, str):
            raise ValueError(f"model is {shown(model)}; {self.name} takes a name, a folder or a GGUF file")
        if not isinstance(drafter, str | None):
            raise ValueError(
                f"drafter is {shown(drafter)}; {self.name} takes one of {', '.join(self.capabilities.drafters)}"
            )
        check_rule(self.name, self.capabilities, verify)
        if invariant:
            raise ValueError(f"{self.name} has no invariant mode; the native engine has")
        if dtype == EIGHT_BIT_ACTIVATIONS:
            name = EIGHT_BIT_ACTIVATIONS
            raise ValueError(f"{self.name} has no {name}, activations of eight bits; the native engine has, on a CPU")
        drafter, given = named_drafter(self.name, self.capabilities, drafter or "none", dict(options or {}))
        own = read_options(self.config, given, self.name)
        self._rule = verify or RULE
        self.totals = SpeculationStats()
        self._under_way: set[Job] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.model = self._open(
            PeerOptions(model, drafter, verify, depth, own, dtype, device, context, trust_remote_code)
        )

    @abstractmethod
    def _open(self, asked: PeerOptions) -> PeerModel:
        """Load the model and get ready to decode."""

    @abstractmethod
    def _start(self, jobs: Sequence[Job]) -> None:
        """Start to decode; returns without waiting."""

    @abstractmethod
    def _stop(self) -> None:
        """End all jobs and free everything; called once."""

    @property
    def model_info(self) -> ModelInfo:
        files = self.model.files
        label = f"{files.name} ({files.weights(exact=False)}{self.model.precision})"
        return ModelInfo(files.name, label, files.quantised, self.model.vocab, self.model.context)

    @property
    def text(self) -> TextCodec:
        return self.model.text

    def _check_running(self) -> None:
        check_process(self._pid)

    def _check_offered(self, sampling: Sampling, options: GenerationOptions, plan: DecodingPlan) -> None:
        refuse(self.name, self.capabilities, sampling, options, plan.drafter != "none")

    def _guarantee(self, plan: DecodingPlan, sampling: Sampling) -> Guarantee:
        return Guarantee(plan.rule)

    def _sample(self, request: Request, index: int) -> Request:
        """A peer has no sample index, so every sample gets a seed of its own."""
        seed = request.sampling.seed
        own = replace(request.sampling, seed=None if seed is None else (seed + index) % 2**63)
        return replace(request, sampling=own, sample=index)

    def _send(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            check_fits(job.row, self.model.vocab, self.model.context)
            check_token_ids(job.row.request, self.model.vocab)
        with self._lock:
            if self._closed:
                raise ValueError("the engine is closed; make a new one")
            started = [job for job in jobs if not job.done]
            self._under_way.update(started)
        for job in jobs:
            if job.done:
                job.end("length")
        self._start(started)

    def _plan(self, speculation: Speculation, sampling: Sampling) -> DecodingPlan:
        """How a request is decoded. A peer that cannot switch speculation by request refuses another choice."""
        if speculation.verify is not None and speculation.verify not in self.capabilities.rules:
            raise ValueError(f"{self.name} has a verification rule of its own; leave verify out")
        built = DecodingPlan(self.model.drafter, self._rule, self.model.depth)
        rule = speculation.verify or self._rule
        name = speculation.drafter or built.drafter
        check_drafter(self.name, self.capabilities, name)
        depth = built.depth if speculation.depth is None else speculation.depth
        off = speculation.off or depth == 0 or name == "none"
        plan = DecodingPlan("none", rule, 0) if off else DecodingPlan(name, rule, depth)
        same = plan == built or (off and built.drafter == "none")
        if not same and not self.capabilities.switch:
            raise ValueError(
                f"{self.name} drafts alike for all requests; open it anew with another drafter, depth or rule"
            )
        return plan

    def advance(
        self, job: Job, tokens: Sequence[int], drafted: int = 0, accepted: int = 0, logprobs: Sequence[Logprob] = ()
    ) -> None:
        """Add the tokens of one cycle to a job; end tokens, limits and stop strings may cut them."""
        origins = [Origin.ACCEPTED] * min(accepted, len(tokens))
        last = Origin.PLAIN if not drafted else Origin.BONUS if accepted == drafted else Origin.RECOVERED
        origins += [last] * (len(tokens) - len(origins))
        kept = job.row.extend(tokens, origins, self.model.context)
        chunk = job.take(tokens[:kept], origins[:kept], logprobs[:kept])
        kept = len(chunk.token_ids)
        with self._lock:
            for stats in (job.stats, self.totals):
                stats.add(drafted, min(kept, accepted), kept)
            if job.done:
                self._under_way.discard(job)
        job.put(chunk)

    def end(self, job: Job, reason: str, error: str | None = None) -> None:
        """Finish a job outside a cycle, unless it is finished already."""
        with self._lock:
            self._under_way.discard(job)
        if not job.done:
            job.end(reason, error)

    def close(self) -> None:
        with self._lock:
            closed, self._closed = self._closed, True
            jobs = list(self._under_way)
        for job in jobs:
            job.cancel()
        if not closed:
            self._stop()
        for job in jobs:
            if not job.done:
                self.end(job, "cancelled")

    @property
    def stats(self) -> dict[str, Any]:
        with self._lock:
            totals, running = self.totals, len(self._under_way)
            return {
                "model": self.label,
                "engine": self.version,
                "running": running,
                "waiting": 0,
                "row_cycles": totals.cycles,
                "tokens": totals.emitted,
                "tau": totals.tau,
                "acceptance": totals.acceptance,
                "drafted": sum(totals.drafted),
                "wasted": totals.wasted,
                "failures": {},
            }
