"""vLLM as the peer of `gpu_load.py`: reads the model and prompts, then one line for each run; writes what it took."""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    import vllm
    from vllm import LLM, SamplingParams

    asked = json.loads(sys.stdin.readline())
    prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
    llm = LLM(
        model=asked["model"],
        dtype="bfloat16",
        attention_backend="FLASH_ATTN",
        enable_prefix_caching=False,
        max_num_seqs=asked["rows"],
        gpu_memory_utilization=0.2,
        kv_cache_memory_bytes=24 << 30,
    )
    print(json.dumps({"vllm": vllm.__version__}), flush=True)
    for line in sys.stdin:
        run = json.loads(line)
        batch = [prompts[i % len(prompts)] for i in range(run["batch"])]
        how = SamplingParams(temperature=run["temperature"], max_tokens=run["tokens"], ignore_eos=True)
        began = time.perf_counter()
        done = llm.generate(batch, how, use_tqdm=False)
        seconds = time.perf_counter() - began
        count = sum(len(answer.outputs[0].token_ids) for answer in done)
        print(json.dumps({"seconds": seconds, "count": count}), flush=True)


if __name__ == "__main__":
    main()
