"""Device drafters: the parts of drafters that run inside captured CUDA graphs."""
