"""The vLLM engine: sends requests to a worker process that runs vLLM, and reads the new tokens of every step."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from slipstream.engines.base import Capabilities, Logprob
from slipstream.engines.job import Job
from slipstream.engines.peer import Peer, PeerModel, PeerOptions
from slipstream.engines.peer_checks import check_device
from slipstream.engines.vllm.process import KILLED, Process
from slipstream.engines.vllm.settings import DEPTH, RULES, VllmConfig, arguments, sampling, speculation
from slipstream.models.sources.catalog import full_folder, load_text, resolve
from slipstream.models.sources.folder import read_json
from slipstream.models.weights.precision import choose

GONE = "vLLM's process ended"

BINDING = "VLLM_CPU_OMP_THREADS_BIND"


class VllmEngine(Peer):
    """Runs a model with vLLM: plain decoding, n-gram or suffix lookup, a draft model, or an EAGLE head."""

    name = "vllm"
    config = VllmConfig
    capabilities = Capabilities(
        drafters=("none", "ngram", "suffix", "draft_model", "eagle"),
        rules=tuple(RULES),
        sampling=frozenset(
            {"temperature", "top_k", "top_p", "min_p", "seed", "logit_bias", "allowed_token_ids"}
            | {"repetition_penalty", "presence_penalty", "frequency_penalty"}
        ),
        logprobs=True,
        min_tokens=True,
        batch=True,
        batch_drafting=True,
        seed=True,
        origins=True,
        not_drafting=frozenset({"min_p", "logit_bias"}),
    )

    def _open(self, asked: PeerOptions) -> PeerModel:
        check_device(self.name, asked.device)
        own: VllmConfig = asked.options
        files = resolve(asked.model, trust_remote_code=asked.trust_remote_code)
        config = read_json(files.path / "config.json")
        longest = min(asked.context or 4096, config.get("max_position_embeddings", 4096))
        precision = str(choose(asked.dtype, "cuda" if torch.cuda.is_available() else "cpu"))
        text = load_text(files)
        self._jobs: dict[str, Job] = {}
        self._names = itertools.count()
        self._ours = threading.Lock()
        self._drafted = 0
        speculative = speculation(asked.drafter, asked.depth, asked.verify, own)
        self._depth = (asked.depth or DEPTH) if speculative else 0
        self._process = Process(own.python, _environment(own), self._hear)
        settings = arguments(str(full_folder(files.path)), precision, longest, speculative, own)
        reply = self._process.start(settings | {"trust_remote_code": files.trust_remote_code})
        if "ready" not in reply:
            self._process.end()
            raise ValueError(f"vllm cannot run {asked.model}: {str(reply['failed']).rstrip('.')}")
        self._version = str(reply["ready"])
        return PeerModel(files, text, config["vocab_size"], longest, precision, asked.drafter, asked.depth)

    @property
    def version(self) -> str:
        return f"vllm {self._version}"

    @property
    def stats(self) -> dict[str, Any]:
        """Counts since the start. vLLM reports drafted tokens only as a sum over all running requests."""
        accepted = sum(self.totals.accepted)
        return super().stats | {"drafted": self._drafted, "wasted": max(0, self._drafted - accepted)}

    def _start(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            name = str(next(self._names))
            with self._ours:
                self._jobs[name] = job
            self._process.say({"ask": name, "prompt": list(job.row.request.prompt), "params": sampling(job)})

    def _hear(self, message: dict[str, Any] | None) -> None:
        if message is None:
            with self._ours:
                unfinished, self._jobs = list(self._jobs.values()), {}
            reason = f"{GONE}: {KILLED}" if unfinished and self._process.killed else GONE
            for job in unfinished:
                self.end(job, "cancelled" if job.cancelled else "error", None if job.cancelled else reason)
        elif "error" in message:
            with self._ours:
                job = self._jobs.pop(message["id"])
            self.end(job, "error", f"vllm refused it: {message['error']}")
        else:
            self._step(message["step"], message["drafted"], message["drafts"])

    def _step(self, updates: Sequence[Mapping[str, Any]], drafted: int, drafts: int) -> None:
        """Add the tokens of one step. The last token is the target's own; those before it were drafted and accepted."""
        self._drafted += drafted
        full_depth = drafts and drafted == drafts * self._depth  # every draft had the full depth
        for update in updates:
            job = self._jobs.get(update["id"])
            if job is None or not update["tokens"]:
                continue
            accepted = len(update["tokens"]) - 1
            own_drafted = drafted if len(updates) == 1 else self._depth if full_depth and job.stats.cycles else accepted
            places = zip(update["tokens"], update["logprobs"], strict=False)
            logprobs = [_logprob(token, place, job.top or 0) for token, place in places]
            self.advance(job, update["tokens"], max(own_drafted, accepted), accepted, logprobs)
            if job.cancelled and not job.done:
                self.end(job, "cancelled")
            if job.done:
                self._leave(update["id"], update["finished"])

    def _leave(self, name: str, finished: bool) -> None:
        with self._ours:
            del self._jobs[name]
        if not finished:
            self._process.say({"cancel": name})

    def _stop(self) -> None:
        self._process.end()


def _environment(own: VllmConfig) -> dict[str, str]:
    processes = own.tensor_parallel * own.pipeline_parallel * own.data_parallel
    memory = {"VLLM_CPU_KVCACHE_SPACE": str(own.memory)}
    return memory | ({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if processes == 1 else _binding(processes))


def _binding(processes: int) -> dict[str, str]:
    """The cores of each of several processes on a CPU. vLLM's own choice needs one NUMA node for each of them."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if BINDING in os.environ or len(cores) < processes:
        return {}
    share = len(cores) // processes
    return {BINDING: "|".join(",".join(map(str, cores[n * share : (n + 1) * share])) for n in range(processes))}


def _logprob(token: int, place: Sequence[Sequence[Any]], count: int) -> Logprob:
    """The chosen token's log-probability and the `count` largest ones. vLLM lists all of them together."""
    values = {int(t): float(value) for t, value in place}
    top = sorted(values.items(), key=lambda pair: -pair[1])
    return Logprob(token, values[token], tuple(top[:count]))
