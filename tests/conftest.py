"""Shapes in signatures are checked while tests run."""

from jaxtyping import install_import_hook

install_import_hook(["slipstream.core", "slipstream.models", "slipstream.drafters"], "typecheck.check")
