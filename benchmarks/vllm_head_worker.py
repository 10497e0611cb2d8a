"""vLLM's part of `vllm_head.py`: `vllm_head_worker.py JOB OUT`. It runs where slipstream is not installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    import vllm
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    job, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    gpu = {"attention_backend": "FLASH_ATTN", "kv_cache_memory_bytes": 4 << 30}
    longest = max(map(len, job["prompts"])) + job["max_tokens"] + 32
    llm = LLM(
        model=job["model"],
        dtype="bfloat16" if job["dtype"] == "auto" else job["dtype"],
        max_model_len=longest,
        max_num_seqs=2,
        enforce_eager=True,
        gpu_memory_utilization=0.2,
        enable_prefix_caching=False,
        disable_log_stats=False,  # they count drafts
        speculative_config={"method": "eagle3", "model": job["head"], "num_speculative_tokens": job["depth"]},
        **({} if current_platform.is_cpu() else gpu),
    )
    params = SamplingParams(
        temperature=0, max_tokens=job["max_tokens"], ignore_eos=True, stop_token_ids=job["ends"], detokenize=False
    )
    rows = []
    for prompt in job["prompts"]:
        before = counts(llm)
        (answer,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        cycles, accepted = (after - earlier for after, earlier in zip(counts(llm), before, strict=True))
        rows.append({"tokens": list(answer.outputs[0].token_ids), "cycles": cycles, "accepted": accepted})
        print(len(rows), len(rows[-1]["tokens"]), cycles, accepted, flush=True)
    out.write_text(json.dumps({"vllm": vllm.__version__, "rows": rows}) + "\n")


def counts(llm: Any) -> tuple[int, int]:
    """Drafts and accepted tokens since the start."""
    values = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    return tuple(int(values.get(f"vllm:spec_decode_num_{name}", 0)) for name in ("drafts", "accepted_tokens"))


if __name__ == "__main__":
    main()
