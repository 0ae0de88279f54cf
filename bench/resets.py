"""A way to a server that breaks: carries TCP connections and resets some of them after a random number of bytes.

resets.py LISTEN_PORT TARGET_PORT SHARE BYTES SEED LOG: each connection is reset with probability SHARE, within its first BYTES
bytes; LOG gets a line for each reset. A SHARE of 0 breaks nothing.
"""
import random
import socket
import struct
import sys
import threading

listen, target, share, within, seed, log = sys.argv[1:7]
chance = random.Random(int(seed))
lock = threading.Lock()


class Pair:
    """One connection of a client and the one to the server that it is carried over."""

    def __init__(self, client):
        self.ends = (client, socket.create_connection(("127.0.0.1", int(target))))
        with lock:
            breaks = chance.random() < float(share)
            self.left = chance.randrange(1, int(within)) if breaks else None
        for a, b in (self.ends, self.ends[::-1]):
            threading.Thread(target=self.carry, args=(a, b), daemon=True).start()

    def reset(self):
        with lock:
            with open(log, "a", encoding="ascii") as told:
                told.write("reset\n")
        for end in self.ends:
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Wakes the other thread, which would hold the connection open for as long as it reads; the last close sends the reset.
                end.shutdown(socket.SHUT_RD)
                end.close()
            except OSError:
                pass

    def carry(self, a, b):
        try:
            while data := a.recv(65536):
                if self.left is not None:
                    with lock:
                        self.left -= len(data)
                        over = self.left <= 0
                    if over:
                        self.left = None
                        return self.reset()
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            # One end is gone: so is the other.
            for end in self.ends:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


server = socket.create_server(("127.0.0.1", int(listen)), backlog=256)
while True:
    connection, _ = server.accept()
    Pair(connection)
