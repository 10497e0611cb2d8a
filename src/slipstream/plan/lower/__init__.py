"""Lowering: what an engine reads to run a plan, or a `PlanError` that names the node it cannot express."""
