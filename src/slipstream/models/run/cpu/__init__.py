"""Decoders on a CPU."""
