"""Running a model: passes over packed tokens on a CPU or a GPU."""
