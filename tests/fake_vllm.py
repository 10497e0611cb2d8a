"""A stand-in for the vllm package: the few names the worker uses, with the answers the real 0.32 gives to them.

Every request is answered by its own prompt, over and over, two tokens a step as if one had been drafted and accepted.
"""

from __future__ import annotations

from pathlib import Path

FILES = {
    "vllm/__init__.py": """
__version__ = "0.0-fake"
class SamplingParams:
    def __init__(self, **given):
        if given.get("temperature") == 99:
            raise ValueError("temperature must not be 99\\nand more")
        self.__dict__.update(given)
""",
    "vllm/platforms.py": """
class current_platform:
    @staticmethod
    def is_cpu():
        return True
""",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
class EngineArgs:
    def __init__(self, **given):
        self.__dict__.update(given)
""",
    "vllm/v1/__init__.py": "",
    "vllm/v1/metrics/__init__.py": "",
    "vllm/v1/metrics/loggers.py": "class StatLoggerBase: pass\n",
    "vllm/v1/engine/__init__.py": "",
    "vllm/v1/engine/llm_engine.py": """
import os, sys, types
print("noise on the standard output")
class LLMEngine:
    def __init__(self, args, loggers):
        self.args, self.loggers, self.requests = args, [make(None) for make in loggers], {}
        if os.environ.get("FAKE_VLLM") == "load":
            raise RuntimeError("no such architecture.")
        if os.environ.get("FAKE_VLLM") == "illegal":
            os.kill(os.getpid(), 4)
        if os.environ.get("FAKE_VLLM") == "large":
            os.kill(os.getpid(), 9)
    @classmethod
    def from_engine_args(cls, args, stat_loggers):
        return cls(args, stat_loggers)
    def has_unfinished_requests(self):
        return bool(self.requests)
    def add_request(self, name, prompt, params):
        self.requests[name] = (prompt["prompt_token_ids"], params, [])
    def abort_request(self, names):
        for name in names:
            self.requests.pop(name, None)
    def step(self):
        if os.environ.get("FAKE_VLLM") == "die":
            os._exit(3)
        if os.environ.get("FAKE_VLLM") == "killed":
            os.kill(os.getpid(), 9)
        outputs, drafts = [], 0
        for name, (prompt, params, done) in list(self.requests.items()):
            take = 1 if not done or not self.args.speculative_config else 2
            drafts += take - 1
            for _ in range(min(take, params.max_tokens - len(done))):
                done.append(prompt[len(done) % len(prompt)])
            over = len(done) == params.max_tokens
            if over:
                del self.requests[name]
            entry = types.SimpleNamespace(logprob=-0.5)
            logprobs = [{token: entry, 3: entry} for token in done] if params.logprobs is not None else None
            one = types.SimpleNamespace(token_ids=list(done), logprobs=logprobs)
            outputs.append(types.SimpleNamespace(request_id=name, outputs=[one], finished=over))
        stats = types.SimpleNamespace(num_draft_tokens=2 * drafts, num_drafts=drafts)
        for logger in self.loggers:
            logger.record(types.SimpleNamespace(spec_decoding_stats=stats), None)
        return outputs
""",
}


def write(folder: Path) -> Path:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
