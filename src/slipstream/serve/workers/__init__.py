"""Several HTTP processes on one port: a process that accepts connections, and workers that serve them."""
