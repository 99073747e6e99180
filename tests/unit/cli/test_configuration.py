"""Options of servers from files and variables, the page about them, and named clusters."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from configuration_page import PAGE, page
from typer.testing import CliRunner

from loomlog.cli import loom
from loomlog.cli.console.command import command
from loomlog.cli.console.config_file import Config
from loomlog.cli.console.failures import UsageError

Run = Callable[..., dict[str, Any]]


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run `make reference`"


@pytest.fixture
def run() -> Run:
    """Run a command with a few options; the values that it got."""
    got: dict[str, Any] = {}
    app = typer.Typer()

    @app.callback()
    def vsn() -> None: ...

    @command(app, variables="LOOM_VSN")
    def start(
        listen: Annotated[str, typer.Option()],
        volumes: Annotated[list[str], typer.Option()],
        rate: Annotated[float, typer.Option(min=0)] = 1.0,
        insecure: Annotated[bool, typer.Option("--insecure")] = False,
        config: Config = None,
    ) -> None:
        got.update(listen=listen, volumes=volumes, rate=rate, insecure=insecure)

    def call(*arguments: str, **variables: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["start", *arguments], prog_name="vsn", env=variables)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if result.exit_code:
            raise UsageError(result.output)
        return got

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "server.toml"
    file.write_text(
        'listen = "a:1"\n[vmr]\ndata = "x"\n'
        '[vsn]\nvolumes = ["/1", "/2"]\nrate = 2\ninsecure = true\n'
    )
    return file


def test_a_file_gives_what_the_command_line_does_not(run: Run, file: Path) -> None:
    given = {"listen": "a:1", "volumes": ["/1", "/2"], "rate": 2.0, "insecure": True}
    assert run("--config", str(file)) == given
    assert run("--config", str(file), "--listen", "b:2") == given | {"listen": "b:2"}
    assert run("--config", str(file), LOOM_VSN_LISTEN="c:3")["listen"] == "c:3"
    assert run("--config", str(file), "--listen", "b:2", LOOM_VSN_LISTEN="c:3")["listen"] == "b:2"


def test_variables_are_enough(run: Run) -> None:
    got = run(LOOM_VSN_LISTEN="c:3", LOOM_VSN_VOLUMES="/1 /2", LOOM_VSN_RATE="0.5")
    assert got == {"listen": "c:3", "volumes": ["/1", "/2"], "rate": 0.5, "insecure": False}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('lisen = "a:1"', "there is no option 'lisen'; did you mean 'listen'?"),
        ('[vsn]\nvolume = ["/1"]', "there is no option 'volume'; did you mean 'volumes'?"),
        ('zzz = "a:1"', "there is no option 'zzz'"),
        ("config = 'x'", "there is no option 'config'"),
        ("listen = [1]", "listen must be a text, a number, true or false"),
        ("volumes = [{a = 1}]", "volumes must be a list of texts"),
        ("listen", "is not TOML"),
        ("listen = 'a'\nvolumes = ['/1']\nrate = 'much'", "rate"),
        ("listen = 'a'\nvolumes = ['/1']\nrate = -1", "rate"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(run: Run, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(UsageError) as refused:
        run("--config", str(tmp_path / "wrong.toml"))
    assert words in " ".join(str(refused.value).split())


def test_one_volume_may_be_written_without_a_list(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text('listen = "a:1"\nvolumes = "/1"\n')
    assert run("--config", str(tmp_path / "one.toml"))["volumes"] == ["/1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[console]\nlisten = "nowhere"', "'nowhere' is not host:port"),
        ('[console]\nlisen = "a:1"', "there is no option 'lisen'; did you mean 'listen'?"),
        ('cluster-id = "prod"\n[vsn]\nlisten = "a:1"\n[console]\nlisten = "b"', "'b' is not"),
        ('[console]\ncluster-id = "prod"', "there is no option 'cluster-id'"),
    ],
)
def test_a_console_has_its_part_of_the_file(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "server.toml").write_text(text)
    result = CliRunner().invoke(loom.app, ["console", "--config", str(tmp_path / "server.toml")])
    assert words in str(result.exception)


def test_a_console_has_variables() -> None:
    result = CliRunner().invoke(loom.app, ["console"], env={"LOOM_CONSOLE_LISTEN": "nowhere"})
    assert "'nowhere' is not host:port" in str(result.exception)
    result = CliRunner().invoke(loom.app, ["console"], env={"LOOM_CLUSTER": "nowhere"})
    assert "'nowhere' is not host:port" in str(result.exception)


# ---- named clusters


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in ("LOOM_CLUSTER", "LOOM_CONTEXT", "LOOM_TLS", "LOOM_TOKEN"):
        monkeypatch.delenv(variable, raising=False)

    def call(*arguments: str) -> Any:
        result = CliRunner().invoke(loom.app, ["context", *arguments, "--json"])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return json.loads(result.output)

    return call


def test_contexts_are_kept_and_the_first_one_is_used(context: Callable[..., Any]) -> None:
    assert context("list") == {"current": "", "contexts": {}}
    context("set", "test", "127.0.0.1:7400")
    context("set", "prod", "10.0.0.1:7400,10.0.0.2:7400")
    assert context("list")["current"] == "test"
    context("use", "prod")
    assert context("list")["current"] == "prod"
    context("delete", "prod")
    found = {"cluster": "127.0.0.1:7400", "tls": "", "token_file": ""}
    assert context("list") == {"current": "", "contexts": {"test": found}}


def test_what_counts_is_what_was_asked_for_most_directly(
    context: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o600)
    context("set", "test", "t:1")
    context("set", "prod", "p:1", "--tls", str(tmp_path), "--token-file", str(tmp_path / "token"))

    def cluster(*arguments: str, **variables: str) -> tuple[str | None, ...]:
        with monkeypatch.context() as patch:
            for name in ("LOOM_CLUSTER", "LOOM_TLS", "LOOM_TOKEN"):
                patch.setenv(name, "")
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            CliRunner().invoke(loom.app, [*arguments, "version"])
            seen = [os.environ.get(name) for name in ("LOOM_CLUSTER", "LOOM_TLS", "LOOM_TOKEN")]
        return tuple(seen)

    assert cluster() == ("t:1", None, None)
    assert cluster(LOOM_CLUSTER="e:1") == ("e:1", None, None)
    assert cluster("--context", "prod", LOOM_CLUSTER="e:1") == ("p:1", str(tmp_path), "secret")
    assert cluster(LOOM_CONTEXT="prod")[0] == "p:1"
    assert cluster("--cluster", "c:1", "--context", "prod") == ("c:1", None, None)


def test_the_token_of_a_context_must_be_private(
    context: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o644)
    context("set", "prod", "p:1", "--token-file", str(tmp_path / "token"))
    result = CliRunner().invoke(loom.app, ["version"])
    assert "may be read by others (mode 644)" in str(result.exception)


def test_an_unknown_context_is_named(context: Callable[..., Any]) -> None:
    context("set", "test", "t:1")
    result = CliRunner().invoke(loom.app, ["--context", "prod", "version"])
    assert "there is no context 'prod'; there are: test" in str(result.exception)
