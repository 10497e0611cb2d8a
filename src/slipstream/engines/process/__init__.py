"""An engine in a process of its own: the interpreter of the process that uses it, such as an HTTP server, is free."""
