"""Models: run one, own its cache, roll back."""
