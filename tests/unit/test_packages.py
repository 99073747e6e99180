"""The packages that are built for an index: the links on their pages are valid."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADDRESS = "https://git.example.org/team/loomlog"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
COPIED = re.compile(r"^COPY (.+) \./$", re.MULTILINE)  # into the image, where the wheel is built
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")


def built(place: Path, address: str) -> Iterator[Message]:
    """Build the source distribution and the wheel with an address, from the files that an image
    is built from; return what they say."""
    place.mkdir()
    [names] = COPIED.findall((ROOT / "deploy/docker/Dockerfile").read_text())
    for name in names.split():
        shutil.copy(ROOT / name, place)
    settings = (ROOT / "pyproject.toml").read_text()
    assert settings.count('\nsource = ""\n') == 1
    settings = settings.replace('\nsource = ""\n', f'\nsource = "{address}"\n')
    (place / "pyproject.toml").write_text(settings)
    for name in ("loomlog", "pyspark_loomlog"):  # what they contain does not matter here
        (place / "src" / name).mkdir(parents=True)
        (place / "src" / name / "__init__.py").touch()
    hatchling = [sys.executable, "-m", "hatchling", "build", "-d", "dist"]
    subprocess.run(hatchling, cwd=place, check=True, capture_output=True)
    [wheel] = (place / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        yield message_from_bytes(files.read(f"loomlog-{VERSION}.dist-info/METADATA"))
    [source] = (place / "dist").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        member = archive.extractfile(f"loomlog-{VERSION}/PKG-INFO")
        assert member is not None
        yield message_from_bytes(member.read())


@pytest.fixture(scope="module")
def with_address(tmp_path_factory: pytest.TempPathFactory) -> list[Message]:
    return list(built(tmp_path_factory.mktemp("with") / "loomlog", ADDRESS))


@pytest.fixture(scope="module")
def without_address(tmp_path_factory: pytest.TempPathFactory) -> list[Message]:
    return list(built(tmp_path_factory.mktemp("without") / "loomlog", ""))


def description(package: Message) -> str:
    text = package.get_payload()
    assert isinstance(text, str)
    assert package["Description-Content-Type"] == "text/markdown"
    assert "pip install 'loomlog[console]'" in text
    return text


def test_links_lead_to_files_of_the_release(with_address: list[Message]) -> None:
    readme = (ROOT / "README.md").read_text()
    for package in with_address:
        links = LINK.findall(description(package))
        assert len(links) == len(LINK.findall(readme)) > 30
        for link in links:
            kind, tag, path = link.removeprefix(f"{ADDRESS}/").split("/", 2)
            assert (kind in ("blob", "raw"), tag) == (True, f"v{VERSION}"), link
            assert (ROOT / path).exists(), link


def test_pictures_are_files_not_pages(with_address: list[Message]) -> None:
    for package in with_address:
        pictures = PICTURE.findall(description(package))
        assert pictures
        assert all(link.startswith(f"{ADDRESS}/raw/v{VERSION}/docs/images/") for link in pictures)


def test_the_project_has_urls(with_address: list[Message]) -> None:
    for package in with_address:
        urls = dict(each.split(", ", 1) for each in package.get_all("Project-URL", []))
        assert urls == {
            "Source": ADDRESS,
            "Documentation": f"{ADDRESS}/tree/v{VERSION}/docs",
            "Changelog": f"{ADDRESS}/blob/v{VERSION}/CHANGELOG.md",
            "Issues": f"{ADDRESS}/issues",
        }


@pytest.mark.parametrize("address", ["git.example.org/team", "http://a/b", "https://a", "x y"])
def test_what_is_no_address_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failure:
        next(built(tmp_path / "loomlog", address))
    assert f"source in pyproject.toml is {address!r}: it must be".encode() in failure.value.stderr


def test_without_an_address_no_link_leads_nowhere(without_address: list[Message]) -> None:
    for package in without_address:
        text = description(package)
        assert not LINK.findall(text)
        assert "docs/security.md" in text
        assert "in the source distribution" in text
        assert package.get_all("Project-URL") is None
