"""Hatchling runs this when it builds: README.md as an index of packages shows it, and project URLs.

An index has no files next to the text, so links to them are made absolute. That needs the address
of the repository, which pyproject.toml has in one place (`source`); without one they become text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")  # to a file
PICTURE_LINE = re.compile(r"^!\[[^\]]*\]\((?!https?://)[^)\s]+\)\n\n", re.MULTILINE)
ADDRESS = re.compile(r"https://[^\s/]+(/[^\s/]+)+/?")
NO_ADDRESS = "The documents that are named here are in the source distribution.\n"


class IndexMetadata(MetadataHookInterface):
    """Adds `readme` and `urls` to the metadata of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        source = checked(self.config["source"])
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        tag = f"v{metadata['version']}"
        described = with_addresses(text, source, tag) if source else without_links(text)
        metadata["readme"] = {"content-type": "text/markdown", "text": described}
        metadata["urls"] = urls(source, tag) if source else {}


def checked(source: str) -> str:
    """Return the address without a slash at its end; raise ValueError if it cannot be one."""
    if source and not ADDRESS.fullmatch(source):
        raise ValueError(
            f"source in pyproject.toml is {source!r}: it must be the address of the repository, "
            "such as https://HOST/OWNER/loomlog, or empty"
        )
    return source.rstrip("/")


def urls(source: str, tag: str) -> dict[str, str]:
    return {
        "Source": source,
        "Documentation": f"{source}/tree/{tag}/docs",
        "Changelog": f"{source}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{source}/issues",
    }


def with_addresses(text: str, source: str, tag: str) -> str:
    """Return the text with links to the files of a release. Pictures are needed as they are, not
    on a page that shows them."""

    def absolute(found: re.Match[str]) -> str:
        picture, label, path = found.groups()
        return f"{picture}[{label}]({source}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return LINK.sub(absolute, text)


def without_links(text: str) -> str:
    """Return the text with the names of files in place of links, and without pictures."""
    return LINK.sub(r"\2", PICTURE_LINE.sub("", text)) + "\n" + NO_ADDRESS
