"""Takes the pictures of the web console that README.md shows, on a cluster of its own with load."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from browser_rig import chromium

import loomlog

SECONDS = 45.0  # of load before the first picture
PAUSE_S = 0.1
READ = 200  # entries
CUSTOMERS = ("ada", "grace", "barbara", "linus", "frances")
PICTURES = (
    ("console-overview", "", "light", 1440, 1130),
    ("console-log", "logs/orders?from=1&count=12", "dark", 1440, 900),
    ("console-phone", "", "dark", 400, 860),
)


async def load(address: str, done: threading.Event) -> None:
    """Append to a log of each protocol, and let two readers be a little behind."""
    rng = random.Random(7)
    async with await loomlog.connect(address) as cluster:
        settings = (("orders", "ordered", 60), ("clicks", "chained", 25), ("sensors", "copyset", 8))
        logs = [(await cluster.create_log(name, kind), rate) for name, kind, rate in settings]
        orders = logs[0][0]
        while not done.is_set():
            for log, rate in logs:
                rows = [order(rng) for _ in range(rng.randrange(rate, 2 * rate))]
                await log.append_many([value for _, value in rows], [key for key, _ in rows])
            tail = await orders.tail()
            async for _ in orders.subscribe(max(1, tail - READ), tail):
                pass
            await orders.checkpoint("billing").set(tail - rng.randrange(40))
            await orders.checkpoint("search-index").set(tail * 9 // 10)
            await asyncio.sleep(PAUSE_S)


def order(rng: random.Random) -> tuple[bytes, bytes]:
    customer = rng.choice(CUSTOMERS)
    amount = rng.randrange(20_000) / 100
    fields = {"order": rng.randrange(10**6), "customer": customer, "amount": amount}
    return f"customer-{customer}".encode(), json.dumps(fields).encode()


def take(url: str, folder: Path, after_s: float) -> None:
    with chromium() as browser:
        visitor = browser.new_page()  # rates are kept while there is one
        visitor.goto(url)
        visitor.wait_for_timeout(1000 * after_s)
        for name, path, scheme, width, height in PICTURES:
            settings: Any = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
            page = browser.new_page(**settings)
            page.goto(url + path)
            page.get_by_text("live", exact=True).wait_for()
            if page.locator("summary").count():
                page.locator("summary").nth(1).click()
            page.wait_for_timeout(2000)  # charts have drawn what was sent
            page.screenshot(path=folder / f"{name}.png")
            page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="loom-pictures-") as data:
        words = ("up", "--nodes", "4", "--port", "0", "--data", "data", "--json", "--console")
        command = [sys.executable, "-m", "loomlog.cli.loom", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=data) as up:
            try:
                assert up.stdout is not None
                ready = json.loads(up.stdout.readline())
                done = threading.Event()
                loading = threading.Thread(target=asyncio.run, args=[load(ready["mr"], done)])
                loading.start()
                try:
                    take(ready["console"], given.folder, given.seconds)
                finally:
                    done.set()
                    loading.join()
            finally:
                up.terminate()


if __name__ == "__main__":
    main()
