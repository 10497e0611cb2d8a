"""Drafting while the target scores, in a thread or CUDA stream of its own."""
