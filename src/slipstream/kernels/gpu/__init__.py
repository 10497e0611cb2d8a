"""GPU kernels in Triton. Each has a reference beside it, and runs anywhere under Triton's interpreter."""
