"""The worker process that runs vLLM: reads requests as lines of JSON and writes the new tokens of every step.

It is started as a script by the interpreter that has vLLM installed, so it imports nothing from slipstream. The first
line that it reads holds the engine's settings; further lines are {"ask": …} and {"cancel": …}. It writes one line for
each step.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO


class DraftCounts:
    """Drafted tokens and drafts of the last step, from vLLM's statistics, summed over all requests."""

    drafted = 0
    drafts = 0

    @classmethod
    def logger(cls) -> Any:
        from vllm.v1.metrics.loggers import StatLoggerBase

        class StepListener(StatLoggerBase):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
                stats = getattr(scheduler_stats, "spec_decoding_stats", None)
                if stats is not None:
                    cls.drafted += stats.num_draft_tokens
                    cls.drafts += stats.num_drafts

            def log_engine_initialized(self) -> None:
                pass

        return StepListener

    @classmethod
    def take(cls) -> tuple[int, int]:
        counts = cls.drafted, cls.drafts
        cls.drafted = cls.drafts = 0
        return counts


def make(settings: Mapping[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine

    own = dict(settings)
    if own.get("enforce_eager") is None:
        own["enforce_eager"] = current_platform.is_cpu()  # compiling for a CPU takes minutes
    arguments = EngineArgs(**own, disable_log_stats=False)
    return LLMEngine.from_engine_args(arguments, stat_loggers=[DraftCounts.logger()])


def ask(engine: Any, message: Mapping[str, Any]) -> None:
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": message["prompt"]}
    engine.add_request(message["ask"], prompt, SamplingParams(**message["params"], detokenize=False))


def new_tokens(output: Any, sent: dict[str, int]) -> dict[str, Any]:
    """The new tokens of one request in a step; vLLM's output repeats all earlier tokens."""
    sample, name = output.outputs[0], output.request_id
    start = sent.get(name, 0)
    sent[name] = len(sample.token_ids)
    logprobs = [[[token, entry.logprob] for token, entry in place.items()] for place in (sample.logprobs or ())[start:]]
    if output.finished:
        del sent[name]
    return {"id": name, "tokens": list(sample.token_ids[start:]), "logprobs": logprobs, "finished": output.finished}


def read(inbox: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        inbox.put(json.loads(line))
    inbox.put(None)


def serve(engine: Any, say: Any) -> None:
    inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=read, args=(inbox,), daemon=True).start()
    sent: dict[str, int] = {}
    while True:
        while not inbox.empty() or not engine.has_unfinished_requests():
            message = inbox.get()
            if message is None:
                return
            if "cancel" in message:
                engine.abort_request([message["cancel"]])
                sent.pop(message["cancel"], None)
                continue
            try:
                ask(engine, message)
            except Exception as error:
                say({"id": message["ask"], "error": str(error).splitlines()[0] if str(error) else repr(error)})
        outputs = engine.step()
        drafted, drafts = DraftCounts.take()
        if outputs:
            say({"step": [new_tokens(output, sent) for output in outputs], "drafted": drafted, "drafts": drafts})


def main() -> None:
    answers: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever vLLM prints goes to standard error

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")

    settings = json.loads(sys.stdin.readline())
    try:
        engine = make(settings)
        import vllm

        say({"ready": vllm.__version__})
    except BaseException as error:
        say({"failed": str(error).strip().splitlines()[0] if str(error).strip() else repr(error)})
        raise
    serve(engine, say)
    answers.flush()
    os._exit(0)  # without waiting for vLLM's threads


if __name__ == "__main__":
    main()
