"""Measure where the CPU time of TLS goes, without sockets: encryption and copies, by size of write.

    python tests/bench/measure_tls_parts.py

Two ends of a TLS 1.3 connection in one thread, over the buffers in memory that asyncio and uvloop
use, too. Prints seconds of CPU time per GB for each step, and the speed of AES alone in OpenSSL as
Python uses it and as `cryptography` brings it. Not a test: numbers depend on the machine.
"""

from __future__ import annotations

import ssl
import subprocess
import tempfile
import time
from pathlib import Path

from cryptography.hazmat.backends.openssl.backend import backend
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from loomlog.core.principal import Principal
from loomlog.limits import KIB, MIB
from loomlog.net.certificates import create_authority, create_certificate
from loomlog.net.credentials import Credentials

TIMES = 200
RECORD_BYTES = 16 * KIB  # of TLS, at most


class End:
    """One end, and what arrives at it and leaves it."""

    def __init__(self, context: ssl.SSLContext, *, accepts: bool) -> None:
        self.arriving, self.leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        host = None if accepts else "127.0.0.1"
        self.tls = context.wrap_bio(
            self.arriving, self.leaving, server_side=accepts, server_hostname=host
        )


def connected() -> tuple[End, End]:
    with tempfile.TemporaryDirectory() as directory:
        create_authority(Path(directory), "bench")
        create_certificate(
            Path(directory), Principal("node", number=1, cluster="bench"), ["127.0.0.1"]
        )
        credentials = Credentials.of_server(directory, "node", 1, "bench")
    ends = End(credentials.connecting(), accepts=False), End(credentials.accepting(), accepts=True)
    for _ in range(4):
        for end, other in (ends, ends[::-1]):
            try:
                end.tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            other.arriving.write(end.leaving.read())
    return ends


def measure(sender: End, receiver: End, size: int) -> None:
    """Send TIMES MiB in writes of this size, and print the CPU time of each step."""
    data, place = memoryview(bytes(MIB)), memoryview(bytearray(size))
    took = dict.fromkeys(("encrypt", "take out", "put in", "decrypt"), 0.0)
    for at in [*range(0, MIB, size)] * TIMES:
        begun = time.thread_time()
        sent = 0
        while sent < size:  # a record at a time
            sent += sender.tls.write(data[at + sent : at + size])
        encrypted = time.thread_time()
        on_the_way = sender.leaving.read()
        taken = time.thread_time()
        receiver.arriving.write(on_the_way)
        put = time.thread_time()
        read = 0
        while read < size:
            read += int(receiver.tls.read(size - read, place[read:]))  # a number, given a place
        done = time.thread_time()
        steps = encrypted - begun, taken - encrypted, put - taken, done - put
        took = {name: took[name] + step_s for name, step_s in zip(took, steps, strict=True)}
    per_gb = {name: step_s / (TIMES * MIB / 1e9) for name, step_s in took.items()}
    cells = " | ".join(f"{value:.2f}" for value in per_gb.values())
    print(f"| {size // KIB} KiB | {cells} | {sum(per_gb.values()):.2f} |")


def main() -> None:
    ends = connected()
    print(f"{ends[0].tls.cipher()}, CPU s/GB")
    print("| write of | encrypt | take out | put in | decrypt | sum |\n|---|---|---|---|---|---|")
    for size_kib in (16, 64, 128, 256, 1024):
        measure(*ends, size_kib * KIB)
    for bits in (128, 256):
        command = ["openssl", "speed", "-seconds", "1", "-bytes", str(RECORD_BYTES), "-evp"]
        command.append(f"aes-{bits}-gcm")
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        ours = said.split()[-1] if said else "not measured"
        cipher, value = AESGCM(bytes(bits // 8)), bytes(RECORD_BYTES)
        begun = time.thread_time()
        for _ in range(20_000):
            cipher.encrypt(bytes(12), value, None)
        theirs = 20_000 * RECORD_BYTES / (time.thread_time() - begun) / 1e9
        print(f"AES-{bits}-GCM: {ours} bytes/s in {ssl.OPENSSL_VERSION}; ", end="")
        print(f"{theirs:.1f} GB/s in {backend.openssl_version_text()}")


if __name__ == "__main__":
    main()
