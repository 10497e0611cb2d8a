"""The llama.cpp engine: runs llama.cpp's server and sends requests to its local address.

The server is that of a build for this machine, in a process of its own, or that of the Python package, in this one."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slipstream.engines.base import Capabilities
from slipstream.engines.job import Job
from slipstream.engines.llamacpp.native_build import LlamaBuild, NativeServer, find_build
from slipstream.engines.llamacpp.settings import KINDS, LlamaCppConfig, parameters, sampling, server_arguments
from slipstream.engines.llamacpp.stream import ByteVocabulary, StreamReader, error_message, events
from slipstream.engines.peer import Peer, PeerModel, PeerOptions
from slipstream.engines.peer_checks import check_device
from slipstream.models.sources.catalog import load_text, resolve
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.gguf.files import gguf_file


class LlamaCppEngine(Peer):
    """Plain decoding, a draft model, or one of llama.cpp's n-gram kinds, on a GGUF file in its own number format."""

    name = "llamacpp"
    config = LlamaCppConfig
    capabilities = Capabilities(
        drafters=("none", "draft_model", *KINDS),
        sampling=frozenset(
            {"temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "logit_bias", "suppress_tokens"}
        ),
        logprobs=True,
        batch=True,
        batch_drafting=True,
        seed=True,
        origins=True,
        not_drafting=frozenset({"logprobs"}),
    )

    def _open(self, asked: PeerOptions) -> PeerModel:
        check_device(self.name, asked.device)
        if asked.dtype != "auto":
            raise ValueError(
                f"dtype is {asked.dtype!r}; llama.cpp computes in the GGUF file's own format; leave it out"
            )
        if asked.trust_remote_code:
            raise ValueError("trust_remote_code is on; llama.cpp runs GGUF files, which bring no code, so leave it out")
        self._options: LlamaCppConfig = asked.options
        file, files = gguf_file(asked.model), replace(resolve(asked.model), rounded=None)  # read as it is
        config = read_json(files.path / "config.json")
        longest = min(asked.context or 8192, config.get("max_position_embeddings", 8192))
        text = load_text(files)
        self._vocabulary = ByteVocabulary(text)
        self._build = find_build(self._options.library)
        self._server: Any = _serve(self._build, asked.model, (file, asked.drafter, asked.depth, longest, self._options))
        self._address = urlsplit(self._server.listening_address)
        self._pool = ThreadPoolExecutor(self._options.rows, thread_name_prefix="slipstream-llamacpp")
        precision = "llama.cpp, native build" if self._build else "llama.cpp"
        return PeerModel(files, text, config["vocab_size"], longest, precision, asked.drafter, asked.depth)

    @property
    def version(self) -> str:
        if self._build is not None:
            return self._build.label
        from importlib.metadata import version

        return f"llama.cpp (xllamacpp {version('xllamacpp')})"

    def _start(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._pool.submit(self._follow, job)

    def _follow(self, job: Job) -> None:
        """Decode one request. Closing the connection ends it at the server."""
        link = http.client.HTTPConnection(self._address.hostname or "", self._address.port)
        try:
            if not job.cancelled:
                self._send_request(job, link)
        except Exception as error:
            self.end(job, "error", f"llama.cpp failed: {error}")
        finally:
            link.close()
        self.end(job, "cancelled" if job.cancelled else "length")

    def _send_request(self, job: Job, link: http.client.HTTPConnection) -> None:
        body = json.dumps(sampling(job, self.model.text.ends, bool(self._options.cache)))
        link.request("POST", "/completion", body, {"Content-Type": "application/json"})
        reply = link.getresponse()
        if reply.status != 200:
            raise ValueError(error_message(reply.read()))
        reader = StreamReader(self._vocabulary)
        for event in events(reply):
            if job.cancelled:
                return
            last = reader.flush() if event.get("stop") else ()
            for cycle in (*reader.feed(event), *last):
                if not job.done:
                    self.advance(job, cycle.tokens, cycle.drafted, cycle.accepted, cycle.logprobs)
            if job.done:
                return

    def _stop(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(self._server, NativeServer):
            self._server.close()
        self._server = None


def _serve(build: LlamaBuild | None, model: str, asked: tuple[Path, str, int | None, int, LlamaCppConfig]) -> Any:
    """A server of the native build, or of the Python package in this process."""
    try:
        if build is not None:
            return NativeServer(build, server_arguments(*asked))
        import xllamacpp

        return xllamacpp.Server(parameters(*asked))
    except RuntimeError as error:
        raise ValueError(f"llama.cpp cannot load {model}: {error}") from error
