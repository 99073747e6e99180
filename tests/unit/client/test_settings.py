"""Settings are checked before anything connects."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from loomlog.client.cluster import connect
from loomlog.client.settings import ClientOptions, checked_settings
from loomlog.config import ClientSettings
from loomlog.errors import InvalidArgument


def test_every_setting_is_an_option_and_its_default_is_valid() -> None:
    defaults: Any = {
        field.name: getattr(ClientSettings(), field.name) for field in fields(ClientSettings)
    }
    assert set(ClientOptions.__annotations__) == {*defaults, "token_file"}  # that becomes a token
    assert checked_settings(defaults) == ClientSettings()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"append_timeout_s": "x"}, "append_timeout_s must be a number of seconds from 0.001"),
        ({"append_timeout_s": -1}, "append_timeout_s must be .*, not -1"),
        ({"append_timeout_s": float("nan")}, "append_timeout_s must be .*, not nan"),
        ({"request_timeout_s": True}, "request_timeout_s must be .*, not True"),
        ({"append_batch_bytes": 1.5}, "append_batch_bytes must be a whole number from 1"),
        ({"appends_in_flight_max": 33}, "a whole number from 1 to 32, not 33"),
        ({"compression": ["lz4"]}, r"no compression \['lz4'\]; use one of log, none, lz4, zstd"),
        ({"retry": "never"}, "no retry 'never'; use one of exactly-once, at-once"),
        ({"compresion": "zstd"}, "no setting compresion; there are append_batch_bytes"),
    ],
)
async def test_a_wrong_setting_is_refused_in_one_line(given: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        await connect("127.0.0.1:1", **given)


def test_a_token_comes_from_an_argument_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    file.chmod(0o600)
    monkeypatch.setenv("LOOM_TOKEN_FILE", str(file))
    assert checked_settings({}).token == "from-file"
    monkeypatch.setenv("LOOM_TOKEN", "from-environment")
    assert checked_settings({}).token == "from-environment"
    settings = checked_settings({"token": "given"})
    assert settings.token == "given"
    assert "given" not in repr(settings)


def test_a_token_file_is_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    for mode in (0o640, 0o604, 0o644):
        file.chmod(mode)
        with pytest.raises(InvalidArgument, match=f"mode {mode:o}.: chmod 600") as e:
            checked_settings({"token_file": str(file)})
        assert "secret" not in str(e.value)
    file.chmod(0o600)
    assert checked_settings({"token_file": str(file)}).token == "secret"
    file.write_text("\n")
    with pytest.raises(InvalidArgument, match="token is empty"):
        checked_settings({"token_file": str(file)})


def test_errors_about_tokens_do_not_show_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument) as error:
        checked_settings({"token": "sécret"})
    assert "cret" not in str(error.value)
    monkeypatch.setenv("LOOM_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        checked_settings({})
