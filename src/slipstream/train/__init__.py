"""Training drafters for a user's own target: the target answers prompts, and a small network learns to predict it."""
