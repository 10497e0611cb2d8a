"""Whole decoding cycles captured as CUDA graphs."""
