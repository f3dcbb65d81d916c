"""A program on a host that listens at a port of both families, and lets in whom it is told to. Reads orders by line.

`accept [SECONDS]` begins to accept connections now or then, `admit ADDRESS ...` answers with the number of strangers
cut off, `ask SECONDS HOST PORT ...` tries to connect to all of these at once and answers how that went, and
`stay HOST PORT` connects, says so, and says when it is cut off.
"""

import contextlib
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from autodist_core.cluster.on_node.admission import admit_only

kept = []


def accept(server):
    while True:
        connection, _ = server.accept()
        kept.append(connection)
        connection.sendall(b"!")


def ask(seconds, host, port):
    try:
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except OSError as error:
        return type(error).__name__
    return "connected"


def stay(host, port):
    with socket.create_connection((host, int(port))) as connection, contextlib.suppress(ConnectionError):
        print("connected", flush=True)
        while connection.recv(1):
            pass
    return "cut off"


def main():
    server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    port = server.getsockname()[1]
    print(port, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["accept", *seconds]:
                timer = threading.Timer(float([*seconds, "0"][0]), accept, [server])
                timer.daemon = True
                timer.start()
            case ["admit", *addresses]:
                print(admit_only(port, addresses), flush=True)
            case ["ask", seconds, *where]:
                with ThreadPoolExecutor() as pool:
                    found = pool.map(lambda pair: ask(float(seconds), *pair), zip(where[::2], where[1::2], strict=True))
                    print(*found, flush=True)
            case ["stay", host, port_there]:
                print(stay(host, port_there), flush=True)


if __name__ == "__main__":
    main()
