"""Follow a scrub to its end, and show what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from loomlog.cli.console import changes
from loomlog.cli.console.changes import WaitProgress, until_finished
from loomlog.cli.console.command import Invocation
from loomlog.cli.console.output import print_scrubs, size
from loomlog.errors import DataLoss

if TYPE_CHECKING:
    from loomlog import Change


class Scrub(Protocol):
    """A request of the client: begin a scrub, or only report its progress."""

    def __call__(self, *, tell_only: bool = False) -> Change: ...


def follow_scrub(what: str, scrub: Scrub, how: Invocation) -> None:
    """Begin a scrub and optionally wait for its end. Raise DataLoss if something cannot be checked
    or repaired."""
    change = scrub()
    if not how.wait:
        changes.say(change, as_json=how.as_json)
        return
    if not how.as_json:
        changes.say_begun(change)

    def look() -> WaitProgress:
        nonlocal change
        change = scrub(tell_only=True)
        return _progress(change)

    waited_s = until_finished(look, how.timeout)
    changes.say(change, as_json=how.as_json, waited_s=waited_s)
    if not how.as_json:
        print_scrubs(change.scrubs)
    _raise_what_remains(what, change)


def _progress(change: Change) -> WaitProgress:
    scrubs = change.scrubs
    is_finished = all(scrub.finished or scrub.error for scrub in scrubs)
    stored, checked = (
        sum(getattr(scrub, field) for scrub in scrubs)
        for field in ("stored_bytes", "checked_bytes")
    )
    share = min(checked / stored, 1.0) if stored else float(is_finished)
    text = f"{size(checked)} of about {size(max(stored, checked))} on {len(scrubs)} nodes"
    return WaitProgress(is_finished, 1.0 if is_finished else share, text)


def _raise_what_remains(what: str, change: Change) -> None:
    for scrub in change.scrubs:
        if scrub.error:
            raise DataLoss(f"{what} on node {scrub.node}: {scrub.error}")
        found = scrub.corrupt_batches + scrub.missing_copies
        if left := found - scrub.repaired_batches:
            raise DataLoss(f"{left} batches of {what} stay corrupt or missing on node {scrub.node}")
