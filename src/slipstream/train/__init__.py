"""Training drafters for a user's own target: the target answers prompts, a small network learns to foresee it."""
