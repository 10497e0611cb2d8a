"""The `generate` command: prompt, task, comparison with plain decoding, and report."""
