"""Shapes in signatures are checked while tests run, where the checker is installed."""

from importlib.util import find_spec

if find_spec("beartype") and find_spec("jaxtyping"):
    from jaxtyping import install_import_hook

    install_import_hook(["slipstream.core", "slipstream.models", "slipstream.drafters"], "typecheck.check")
