"""llama.cpp as an engine, through xllamacpp, which carries its server in a Python module."""
