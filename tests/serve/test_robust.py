"""What a server has to survive: clients that send too much, go away or read slowly, and parts that fail."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from live import MODEL, served

from slipstream.serve.config import ServerConfig, ServerLimits


def test_a_client_that_sends_too_much_reads_why():
    limits = ServerLimits(max_body=1 << 20)
    with served(ServerConfig(models=(MODEL,), limits=limits)) as address:
        host = urlsplit(address)
        body = b'{"prompt": "' + b"a" * (8 << 20) + b'"}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection((host.hostname, host.port), timeout=30) as own:
            own.sendall(head + body)  # where the server closes before it has read all, this or the next line fails
            assert own.recv(4096).startswith(b"HTTP/1.1 413 ")
