"""Kernels for a GPU, in Triton. What each must equal stands beside it, and runs anywhere under Triton's interpreter."""
