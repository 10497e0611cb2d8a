"""Bench: engines, drafters, depths and rules side by side on the same prompts, in one interleaved run.

Decoding is bound by reading the weights, machines are noisy and texts differ in how well they can be guessed. So every
figure here is a median over repeats that took turns, held against plain decoding on the same prompts and against what
the memory could have done. `python -m slipstream.bench` needs torch, transformers and numpy alone.
"""
