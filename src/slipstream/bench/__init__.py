"""Bench: engines, drafters, depths and rules side by side on the same prompts, in one interleaved run.

Machines are noisy, and acceptance differs between texts. So runs of all setups are interleaved. Every ratio is computed
per repeat against plain decoding of the same prompts, and has a confidence interval. `python -m slipstream.bench` needs
only torch, transformers and numpy.
"""
