"""Logits processors as kernels, for captured cycles."""
