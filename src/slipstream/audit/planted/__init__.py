"""Known bugs, planted one at a time for the self-test of the audit."""
