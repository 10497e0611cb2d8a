"""The transformers engine: one thread calls `generate`, for several plain requests or one assisted request."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from slipstream.engines.base import Capabilities
from slipstream.engines.job import Job
from slipstream.engines.peer import Peer, PeerModel, PeerOptions
from slipstream.engines.transformers.call import TransformersConfig, alike, generation, padded, set_depth
from slipstream.engines.transformers.randomness import SeededGenerators
from slipstream.engines.transformers.watch import StepWatcher
from slipstream.models.sources.catalog import load_model, load_text, resolve
from slipstream.models.sources.progress import quiet
from slipstream.models.text.codec import same_tokenizer
from slipstream.models.weights.precision import choose_device

GATHER = 0.01  # seconds to wait for further requests that can share a call
TURN = threading.Lock()  # only one engine of a process runs at a time: transformers uses torch's global generators


class TransformersEngine(Peer):
    """Plain `generate`, prompt lookup (`ngram`), a draft model, or the target's own first layers (`early_exit`)."""

    name = "transformers"
    config = TransformersConfig
    capabilities = Capabilities(
        drafters=("none", "ngram", "draft_model", "early_exit"),
        sampling=frozenset(
            {"temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "logit_bias", "suppress_tokens"}
        ),
        logprobs=True,
        min_tokens=True,
        batch=True,
        seed=True,
        origins=True,
        switch=True,
    )

    def _open(self, asked: PeerOptions) -> PeerModel:
        self._options: TransformersConfig = asked.options
        files = resolve(asked.model, trust_remote_code=asked.trust_remote_code)
        place = choose_device(asked.device)
        text = load_text(files)
        self._model: Any = _bare(load_model(files, asked.dtype, place))
        config = self._model.config.get_text_config()
        self._layers = config.num_hidden_layers
        if not 0 <= self._options.exit < self._layers:
            raise ValueError(f"exit is {self._options.exit}; it must be one of the layers 1 to {self._layers - 1}")
        precision = str(self._model.dtype).removeprefix("torch.")
        longest = min(asked.context or config.max_position_embeddings, config.max_position_embeddings)
        model = PeerModel(files, text, config.vocab_size, longest, precision, asked.drafter, asked.depth)
        self._pad = min((token for token in text.ends if token < config.vocab_size), default=0)
        self._assistant: Any = self._draft_model(model, asked, place)
        self._inbox: list[Job] = []
        self._ready = threading.Condition()
        self._over = False
        self._worker: threading.Thread | None = None
        return model

    @property
    def version(self) -> str:
        import transformers

        return f"transformers {transformers.__version__}"

    def _draft_model(self, model: PeerModel, asked: PeerOptions, place: str) -> Any:
        if not self._options.model:
            if model.drafter == "draft_model":
                raise ValueError("a draft model needs a name: --drafter NAME, or -o model=NAME")
            return None
        files = resolve(self._options.model, trust_remote_code=asked.trust_remote_code)
        difference = same_tokenizer(load_text(files).tokenizer, model.text.tokenizer)
        if difference:
            raise ValueError(f"{files.name} cannot draft for {model.files.name}: {difference}")
        return _bare(load_model(files, asked.dtype, place))

    def _start(self, jobs: Sequence[Job]) -> None:
        if any(job.plan.drafter == "draft_model" for job in jobs) and self._assistant is None:
            for job in jobs:
                self.end(job, "error", "the engine was opened without a draft model")
            return
        with self._ready:
            self._inbox += jobs
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="slipstream-transformers", daemon=True)
                self._worker.start()
            self._ready.notify()

    def _work(self) -> None:
        while jobs := self._next():
            try:
                self._decode(jobs)
            except Exception as error:
                for job in jobs:
                    self.end(
                        job, "error", f"transformers failed: {str(error).splitlines()[0] if str(error) else error!r}"
                    )
            for job in jobs:
                self.end(job, "cancelled" if job.cancelled else "length")

    def _next(self) -> list[Job]:
        """The oldest job and the jobs that can share its call; empty when the engine closes."""
        with self._ready:
            self._ready.wait_for(lambda: self._inbox or self._over)
            while self._inbox and alike(self._inbox[0]) is not None and self._ready.wait(GATHER):
                pass  # requests sent together arrive one by one
            if self._over:
                return []
            key = alike(self._inbox[0])
            together = [job for job in self._inbox if key is not None and alike(job) == key][: self._options.rows]
            jobs = together or self._inbox[:1]
            self._inbox = [job for job in self._inbox if job not in jobs]
            return jobs

    def _decode(self, jobs: Sequence[Job]) -> None:
        first = jobs[0]
        generators = SeededGenerators(first.row.seed)  # a random seed if the request has none
        watch = StepWatcher(self._model, jobs, self.advance, generators)
        assistant = self._assistant if first.plan.drafter == "draft_model" else None
        if first.plan.drafter in ("draft_model", "early_exit"):
            set_depth(assistant or self._model, first.plan.depth, self._options.confidence)
        with TURN, torch.inference_mode(), generators, watch.hooks(), quiet():
            self._model.generate(
                **padded(jobs, self._pad, self._model.device),
                generation_config=generation(first, self._pad, self._options, self._layers),
                stopping_criteria=[watch],
                assistant_model=assistant,
            )

    def _stop(self) -> None:
        with self._ready:
            self._over = True
            self._ready.notify()
        if self._worker is not None:
            self._worker.join()


def _bare(model: Any) -> Any:
    """The model without its stored generation settings, because each request sets all of them."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig()
    return model
