"""Tasks: problems whose answers are graded automatically, for measuring quality beside time and energy."""
