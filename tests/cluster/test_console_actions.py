"""The actions of the web console in a headless Chromium: their effects, confirmations, and messages
about wrong input."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser_rig import chromium
from cli_rig import Up, loom_up, storage_node

from loomlog import BlockingCluster, connect_sync

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

PATIENCE_MS = 60_000
QUICK = ("--sync", "none", "--heartbeat-timeout", "1", "--console")


@contextmanager
def console(data: Path, *options: str) -> Iterator[tuple[Up, Page, BlockingCluster]]:
    with (
        chromium() as browser,
        loom_up(data, *QUICK, *options) as up,
        connect_sync(up.mr) as cluster,
    ):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        yield up, page, cluster
        assert wrong == []


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def opened(page: Page, button: str) -> Locator:
    """Open a dialog by the keyboard, and return it."""
    page.get_by_role("button", name=button).first.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    return dialog


def refused(dialog: Locator, submit: str, why: str) -> None:
    dialog.get_by_role("button", name=submit, exact=True).click()
    dialog.get_by_role("alert").filter(has_text=re.compile(why)).wait_for()


def done(page: Page, dialog: Locator, submit: str, says: str) -> None:
    dialog.get_by_role("button", name=submit, exact=True).click()
    dialog.wait_for(state="hidden")
    page.get_by_role("status").filter(has_text=re.compile(says)).wait_for()


@pytest.mark.timeout(240)
def test_a_log_is_switched_trimmed_sealed_and_deleted(tmp_path: Path) -> None:
    with console(tmp_path / "data", "--nodes", "2") as (up, page, cluster):
        log = cluster.create_log("orders", replicas=2)
        log.append_many([b"%d" % number for number in range(20)])
        page.goto(f"{up.console}logs/orders")

        dialog = opened(page, "Trim…")
        trim = dialog.get_by_role("button", name="Delete these entries")
        position, name = dialog.get_by_label("Last position"), dialog.get_by_label("to confirm")
        position.fill("5")
        for text in ("", "order", "Orders"):
            name.fill(text)
            assert trim.is_disabled(), text
        page.keyboard.press("Escape")
        assert not dialog.is_visible()
        dialog = opened(page, "Trim…")
        assert position.input_value() == "", "an action that was given up leaves nothing behind"
        name.fill("orders")
        for text, why in (("21", "ends at position 20"), ("0", "position"), ("five", "position")):
            position.fill(text)
            refused(dialog, "Delete these entries", why)
        assert log.head() == 1
        position.fill("5")
        done(page, dialog, "Delete these entries", "begins at 6")
        assert log.head() == 6
        page.locator(".tile").filter(has_text="first position").get_by_text("6").wait_for()

        dialog = opened(page, "Retention…")
        dialog.get_by_label("Entries stay for").fill("soon")
        refused(dialog, "Set", "soon")
        dialog.get_by_label("Entries stay for").fill("7d")
        dialog.get_by_label("Size that stays").fill("10G")
        done(page, dialog, "Set", "Done")
        page.reload()
        dialog = opened(page, "Retention…")
        assert dialog.get_by_label("Entries stay for").input_value() == "7d"
        assert dialog.get_by_label("Size that stays").input_value() == "10G"
        page.keyboard.press("Escape")

        page.locator("[data-dialog=seal]").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Cancel").click()
        assert log.describe().streams[0].state == "running"
        page.locator("[data-dialog=seal]").click()
        done(page, dialog, "Seal", "is sealed|will be sealed")
        page.locator("[data-dialog=unseal]").click()
        done(page, dialog, "Unseal", "runs in epoch|is to run")
        page.locator("[data-dialog=seal]").wait_for()

        dialog = opened(page, "Switch…")
        refused(dialog, "Switch", "nothing would change")
        dialog.get_by_label("Replicas").fill("9")
        refused(dialog, "Switch", "node")
        dialog.get_by_label("Replicas").fill("-1")
        dialog.get_by_role("button", name="Switch", exact=True).click()
        assert dialog.locator("input:invalid").count() == 1  # the browser says so itself
        assert len(log.describe().segments) == 1
        dialog.get_by_label("Replicas").fill("")
        dialog.get_by_label("Protocol").select_option("copyset")
        done(page, dialog, "Switch", "copyset")
        page.locator("#live_parts").get_by_role("cell", name="copyset").first.wait_for()
        assert page.locator("[data-dialog=seal]").count() == 0, "it has no streams to be sealed"
        at = log.append_many([b"a", b"b"])[0].position
        page.reload()
        dialog = opened(page, "Trim…")
        dialog.get_by_label("Last position").fill(f"e{at >> 32}n{at & 0xFFFFFFFF}")
        dialog.get_by_label("to confirm").fill("orders")
        done(page, dialog, "Delete these entries", "begins at")
        assert log.head() == at + 1

        dialog = opened(page, "Delete…")
        delete = dialog.get_by_role("button", name="Delete the log")
        dialog.get_by_label("to confirm").fill("order")
        assert delete.is_disabled()
        dialog.get_by_label("to confirm").fill("orders")
        delete.click()
        page.get_by_text("There are no logs yet. Create one here").wait_for()
        assert [each.name for each in cluster.logs()] == []


@pytest.mark.timeout(240)
def test_load_is_spread_over_a_new_node(tmp_path: Path) -> None:
    with console(tmp_path / "data", "--nodes", "2") as (up, page, cluster):
        for number in range(4):
            cluster.create_log(f"log-{number}", streams=2, replicas=2).append(b"x")
        page.goto(f"{up.console}nodes")
        dialog = opened(page, "Rebalance…")
        dialog.get_by_text("there is nothing to do").wait_for()
        assert dialog.get_by_role("button", name="Begin").is_disabled()
        page.keyboard.press("Escape")
        with storage_node(up.mr, 3, tmp_path / "vsn-3"):
            page.get_by_role("heading", name="Node 3").wait_for()
            dialog = opened(page, "Rebalance…")
            dialog.get_by_text(re.compile(r"[1-9]\d* replicas would move")).wait_for()
            dialog.get_by_role("button", name="Cancel").click()
            dialog = opened(page, "Rebalance…")
            dialog.get_by_text("would move").wait_for()
            done(page, dialog, "Begin", r"[1-9]\d* moves have begun")
            card = page.locator(".node").filter(has_text="Node 3")
            card.locator("dd").filter(has_text=re.compile(r"^[1-9]\d*$")).first.wait_for()


@pytest.mark.timeout(240)
def test_what_is_missing_forbidden_or_away_is_said(tmp_path: Path) -> None:
    with console(tmp_path / "data", "--nodes", "1") as (up, page, cluster):
        page.goto(up.console)
        tile = page.locator("a.tile[href='/nodes']")
        tile.focus()
        before = page.locator(".tile").last.inner_text()
        page.wait_for_function(
            "before => [...document.querySelectorAll('.tile')].at(-1).innerText !== before",
            arg=before,
        )
        assert tile.evaluate("tile => tile === document.activeElement"), "it keeps the focus"

        page.goto(f"{up.console}nope")
        page.get_by_role("heading", name="Not found").wait_for()
        page.goto(f"{up.console}logs/orders")
        page.get_by_role("heading", name="Not found").wait_for()
        assert page.locator("[role=alert]:visible").count() == 1
        log = cluster.create_log("orders", replicas=1)
        page.get_by_role("heading", name="orders", exact=True).wait_for()
        page.get_by_text("There are no entries here.").wait_for()
        page.get_by_role("textbox", name="From", exact=True).fill("yesterday")
        page.get_by_role("button", name="Search").click()
        page.get_by_text("from must be a position").wait_for()
        page.wait_for_load_state()  # or the next page interrupts this one

        root = cluster.create_token("root", ["*:*"]).text
        viewer = cluster.create_token("viewer", ["read:*", "metrics:*"]).text
        log.append(b"first")
        with connect_sync(up.mr, token=root) as operator:
            operator.enforce_access(True)
        page.goto(up.console)
        page.get_by_role("heading", name="Sign in", exact=True).wait_for()
        page.get_by_label("Token").fill("nonsense")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Not permitted").wait_for()
        page.get_by_label("Token").fill(viewer)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Healthy").wait_for()
        page.goto(f"{up.console}logs/orders")
        page.locator("details.entry summary").get_by_text("first").wait_for()
        dialog = opened(page, "Trim…")
        dialog.get_by_label("Last position").fill("1")
        dialog.get_by_label("to confirm").fill("orders")
        refused(dialog, "Delete these entries", "no permission trim:orders")
        page.keyboard.press("Escape")
        dialog = opened(page, "Append…")
        dialog.get_by_label("Value").fill("x")
        refused(dialog, "Append", "no permission append:orders")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("heading", name="Sign in", exact=True).wait_for()


@pytest.mark.timeout(240)
def test_entries_appear_once_they_can_be_read(tmp_path: Path) -> None:
    with console(tmp_path / "data", "--nodes", "1") as (up, page, cluster):
        log = cluster.create_log("orders", replicas=1)
        page.goto(f"{up.console}logs/orders")
        page.get_by_text("There are no entries here.").wait_for()
        log.append(b"first")
        row = page.locator("details.entry summary").get_by_text("first")
        row.wait_for()
        assert page.get_by_text("There are no entries here.").count() == 0

        with stopped(up.pids["vsn-1"]):
            page.goto(f"{up.console}logs/orders?count=7")
            page.get_by_text("The entries cannot be read at the moment").wait_for()
            assert row.count() == 0
            page.get_by_role("textbox", name="From", exact=True).fill("typed meanwhile")
        row.wait_for()
        typed = page.get_by_role("textbox", name="From", exact=True).input_value()
        assert typed == "typed meanwhile", "the page was not loaded again"


@pytest.mark.timeout(240)
def test_a_page_keeps_its_focus_while_the_cluster_does_not_answer(tmp_path: Path) -> None:
    with console(tmp_path / "data", "--nodes", "1") as (up, page, _):
        page.goto(up.console)
        tile = page.locator("a.tile[href='/nodes']")
        tile.focus()
        away = page.locator("#away")
        with stopped(up.pids["vmr-1"]):
            away.wait_for()
        away.wait_for(state="hidden")
        assert tile.evaluate("tile => tile === document.activeElement")
