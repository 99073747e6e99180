"""Does what quickstart.py does, without async: for scripts, notebooks and threads.

Start a cluster with `loom up`, then run this file. LOOM_CLUSTER says where the cluster is.
"""

import os

import loomlog


def main() -> None:
    address = os.environ.get("LOOM_CLUSTER", "127.0.0.1:7400")
    with loomlog.connect_sync(address) as cluster:
        log = cluster.create_log("sync-quickstart", streams=1, replicas=3, exist_ok=True)

        ats = log.append_many([f"line {n}".encode() for n in range(5)])
        print(f"appended positions {ats[0].position} to {ats[-1].position}")

        for entry in log.subscribe(start=ats[0].position, stop=ats[-1].position):
            print(f"{entry.position}: {entry.value.decode()}")


if __name__ == "__main__":
    main()
