"""llama.cpp as an engine: a build for this machine, or the Python package xllamacpp, which contains its server."""
