"""What the engines of others share: a request becomes a job, tokens that come back become chunks.

A peer decodes by its own means and by its own rule. Only what stands around that is here: what it does not offer is
refused in a sentence, prompts are encoded and text is decoded as for the native engine, and end tokens, stop strings
and limits are kept on this side of the fence, so that one request means the same everywhere.
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
from slipstream.drafters import drafters
from slipstream.engines.base import (
    Capabilities,
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
from slipstream.models.sources.catalog import names_model
from slipstream.models.sources.load import ModelFiles
from slipstream.models.text.codec import TextCodec
from slipstream.models.weights.precision import SHORT

RULE = "its own"


@dataclass(frozen=True)
class PeerOptions:
    """How a peer is to be opened, after the checks that are the same for all of them."""

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
    """The model as a peer runs it: what it is, its text, its sizes, and how a request drafts if it asks for nothing."""

    files: ModelFiles
    text: TextCodec
    vocab: int
    context: int
    precision: str
    drafter: str
    depth: int | None


class Peer(JobEngine):
    """A peer decodes jobs: `_open` loads the model, `_start` takes jobs, `advance` and `end` bring what came of them,
    `_stop` gives everything back."""

    name: ClassVar[str]
    config: ClassVar[type[Any]]  # of the options that are its own

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
        if dtype == SHORT:
            raise ValueError(f"{self.name} has no {SHORT}, activations of eight bits; the native engine has, on a CPU")
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
        """Begin to decode; returns at once."""

    @abstractmethod
    def _stop(self) -> None:
        """End what runs and give everything back; called once."""

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
        """A peer knows seeds only, so every sample has one of its own."""
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
        """A peer that cannot choose speculation for one request refuses another choice than its own."""
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
        """One cycle of the peer brought these tokens; end tokens, limits and stop strings cut them."""
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
        """Finish a job outside a cycle, if it is not over already."""
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


def refuse(engine: str, can: Capabilities, sampling: Sampling, options: GenerationOptions, drafting: bool) -> None:
    """A sentence about the first thing that is asked for and not offered."""
    asked = _unusual(sampling, Sampling())
    if beyond := sorted(asked - can.sampling):
        raise ValueError(f"{engine} does not offer {', '.join(beyond)}; it takes {', '.join(sorted(can.sampling))}")
    constraints = dict.fromkeys(("grammar", "json_schema", "regex"), can.grammar)
    offered = {**constraints, "logprobs": can.logprobs, "min_tokens": can.min_tokens}
    wanted = _unusual(options, GenerationOptions()) & offered.keys()
    for name in wanted:
        if not offered[name]:
            raise ValueError(f"{engine} does not offer {name} here; leave it out or use another engine")
    if drafting and (apart := sorted((asked | wanted) & can.not_drafting)):
        raise ValueError(f"{engine} offers {', '.join(apart)} with plain decoding only; use the drafter none")


def _unusual(asked: Any, usual: Any) -> set[str]:
    """The fields that are not as they are by default."""
    return {name for name, value in vars(usual).items() if getattr(asked, name) != value}


def check_drafter(engine: str, can: Capabilities, name: str) -> None:
    if name not in can.drafters:
        raise ValueError(f"the engine {engine} cannot draft with {name!r}; it offers {', '.join(can.drafters)}")


def named_drafter(engine: str, can: Capabilities, name: str, options: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The kind of drafter a name stands for, and options with the model of a name that is one."""
    plain = name in can.drafters or name in drafters
    if not plain and names_model(name):
        name, options = "draft_model", {"model": name, **options}
    check_drafter(engine, can, name)
    return name, options


def check_rule(engine: str, can: Capabilities, verify: str | None) -> None:
    if verify is None or verify in can.rules:
        return
    if can.rules:
        raise ValueError(f"{engine} has no rule {verify!r}; it has {', '.join(can.rules)}")
    raise ValueError(f"{engine} has a verification rule of its own; leave out verify={verify}")


def check_device(engine: str, device: str) -> None:
    """For engines that choose the place they run in themselves."""
    if device != "auto":
        raise ValueError(f"device is {device!r}; {engine} chooses its own, so leave it out")
