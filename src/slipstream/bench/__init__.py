"""Bench: engines, drafters, depths and rules side by side on the same prompts, in one interleaved run.

Machines are noisy and texts differ in how well they can be drafted. So setups take turns, every ratio is taken repeat
by repeat against plain decoding of the same prompts, and it has an interval. `python -m slipstream.bench` needs torch,
transformers and numpy alone.
"""
