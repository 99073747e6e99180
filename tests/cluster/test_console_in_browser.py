"""The web console as a person uses it, in a headless Chromium on a cluster of real processes."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser_rig import chromium
from cli_rig import loom_up

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATIENCE_MS = 60_000


def used_by_keyboard(page: Page, name: str) -> None:
    button = page.get_by_role("button", name=name)
    button.focus()
    page.keyboard.press("Enter")


@pytest.mark.timeout(240)
def test_create_append_see_it_arrive_kill_a_node_recover_and_drain(tmp_path: Path) -> None:
    quick = ("--nodes", "4", "--sync", "none", "--heartbeat-timeout", "1")
    with chromium() as browser, loom_up(tmp_path / "data", *quick, "--console") as up:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)

        page.goto(up.console)
        page.get_by_role("heading", name="Healthy").wait_for()
        page.get_by_role("link", name="Logs", exact=True).first.click()
        used_by_keyboard(page, "Create a log…")
        page.get_by_label("Name").fill("bad name")
        page.get_by_role("button", name="Create", exact=True).click()
        page.get_by_role("alert").filter(has_text="is not a valid log name").wait_for()
        page.get_by_label("Name").fill("orders")
        page.get_by_label("Replicas").fill("2")
        page.get_by_role("button", name="Create", exact=True).click()
        page.get_by_role("heading", name="orders", exact=True).wait_for()

        page.get_by_label("Follow new entries").check()
        used_by_keyboard(page, "Append…")
        page.get_by_label("Value").fill('{"item": "<b>tea</b>", "count": 2}')
        page.get_by_label("Key").nth(1).fill("customer-7")
        page.get_by_role("button", name="Append", exact=True).click()
        page.get_by_role("status").filter(has_text="Appended at position 1.").wait_for()
        arrived = page.locator("details.entry").first
        arrived.get_by_text("customer-7").wait_for()
        arrived.locator("summary").click()
        assert '"item": "<b>tea</b>"' in arrived.locator("pre").inner_text()

        nodes = page.locator("td[data-label=Nodes]").first
        primary, backup = map(int, re.findall(r"\d+", nodes.inner_text()))
        page.goto(up.console)
        os.kill(up.pids[f"vsn-{primary}"], signal.SIGKILL)
        page.get_by_role("heading", name=re.compile("Warning|Problem")).wait_for()
        page.get_by_text(f"Node {primary} is away.").wait_for()
        page.get_by_role("cell", name="away", exact=True).wait_for()
        page.get_by_text("3 / 4").wait_for()
        # A line of zeros has no height, so a browser calls it hidden.
        page.locator(".chart path.line").first.wait_for(state="attached")
        page.locator(".chart svg").first.hover()
        page.locator(".chart .readout").filter(has_text=re.compile(r":\d\d  \d")).wait_for()
        page.goto(f"{up.console}logs/orders")
        others = "".join(str(node) for node in range(1, 5) if node != primary)
        row = page.locator("#live_parts tr").filter(has_text="running")
        row.get_by_text(re.compile(rf"^[{others}] \(primary\), [{others}]")).first.wait_for()

        page.goto(f"{up.console}nodes")
        page.locator(f"#drain-{backup}").click()
        page.get_by_text("would").first.wait_for()
        page.get_by_role("button", name="Drain", exact=True).click()
        page.get_by_role("button", name="Use again…").wait_for()
        page.goto(f"{up.console}work")
        page.get_by_text("empty: it may be stopped").wait_for()
        page.goto(f"{up.console}timeline")
        for text in ("log create orders", f"node {primary} is away", f"node drain {backup}"):
            page.locator(".events li").filter(has_text=text).first.wait_for()
        assert [line for line in wrong if "400 (Bad Request)" not in line] == []

        page.set_viewport_size({"width": 400, "height": 860})
        for path in ("", "nodes", "logs", "logs/orders", "readers", "work", "timeline", "api"):
            page.goto(up.console + path)
            page.get_by_role("heading").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
