"""llama.cpp as an engine, through the Python package xllamacpp, which contains its server."""
