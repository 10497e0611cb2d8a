"""Running a model on a GPU: passes captured as CUDA graphs."""
