"""The intermediate representation of a pipeline: a plan is a list of typed nodes that can be written, printed, checked,
changed by passes and lowered to an engine."""
