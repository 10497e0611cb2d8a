"""Kernels of DFlash stacks: the layout of blocks, and the Markov head."""
