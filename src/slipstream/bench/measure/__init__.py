"""What is measured: times and counts of a workload, memory, energy, the machine's limits, and provenance."""
