"""Fast paths. Each names the plain function it must equal, and is refused where it does not."""
