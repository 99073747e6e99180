"""Makes docs/configuration.md from the options of the servers and the settings of the client.

`make reference` writes the page; tests/unit/cli/test_configuration.py checks that it is current.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer.main

from loomlog import config
from loomlog.cli import loom, vmr, vsn

SERVERS: Final = (
    ("vmr start", vmr.app, "start"),
    ("vsn start", vsn.app, "start"),
    ("loom console", loom.app, "console"),
)
PAGE: Final = Path(__file__).parents[2] / "docs" / "configuration.md"

HEAD: Final = """\
# Configuration

`make reference` generates this page from the code.

A server reads its options from the command line, from environment variables, and from a TOML file
(`--config FILE.toml`). The command line takes precedence over variables, and variables over the
file. Keys of the file are the names of the options. Top-level keys are for every server that reads
the file, those in a table `[vmr]`, `[vsn]` or `[console]` only for that kind:

```toml
cluster-id = "prod"
tls = "/etc/loomlog/certs"

[vmr]
data = "/var/lib/loomlog/vmr"
listen = "10.0.0.1:7400"

[vsn]
storage-node-id = 1
volumes = ["/disk1/loomlog", "/disk2/loomlog"]
mr = "10.0.0.1:7400"
listen = "10.0.0.1:7401"
http = "10.0.0.1:7481"

[console]
cluster = "10.0.0.1:7400"
listen = "10.0.0.1:7490"
certificate = "/etc/loomlog/console.pem"
```

At startup, a server refuses an unknown key or an invalid value, with one line that names it.
Repeatable options are lists in the file, and words separated by spaces in a variable.

Other `loom` commands use contexts instead: [named clusters](#loom).
"""

LOOM: Final = """\
## loom

| variable | meaning |
|---|---|
| `LOOM_CLUSTER` | the addresses of the metadata repositories, as `--cluster` |
| `LOOM_CONTEXT` | the name of a cluster, as `--context` |
| `LOOM_TLS` | directory or file of a certificate, as `--tls`; also of Python programs |
| `LOOM_TOKEN` | a token; also of Python programs |
| `LOOM_TOKEN_FILE` | a file with a token, as `--token-file` |
| `LOOM_ETCD_PASSWORD` | the password for etcd, also of servers |
| `LOOM_DEBUG` | if set, errors are shown with their tracebacks |

`loom context set NAME ADDR [--tls FILE] [--token-file FILE]` names a cluster, `loom context use
NAME` makes it the default of commands, `loom --context NAME …` uses it once. In order of
precedence, commands use `--cluster`, `--context` or `LOOM_CONTEXT`, `LOOM_CLUSTER`, the default
context, 127.0.0.1:7400. Contexts are stored in `~/.config/loomlog/contexts.json`, or below
`XDG_CONFIG_HOME`.
"""


def page() -> str:
    parts = [HEAD]
    for name, app, command in SERVERS:
        group: Any = typer.main.get_command(app)
        parts += [f"## {name}\n", *_server(group.commands[command]), ""]
    parts.pop()
    parts += ["\n## Client\n", *_client(), "", LOOM.rstrip()]
    return "\n".join(parts) + "\n"


def _server(command: Any) -> Iterator[str]:
    yield "| option, key | variable | default | meaning |"
    yield "|---|---|---|---|"
    for option in command.params:
        if option.hidden:
            continue
        name = max(option.opts, key=len).removeprefix("--")
        cells = (f"`{name}`", f"`{option.envvar}`", _default(option), _escaped(option.help or ""))
        yield f"| {' | '.join(cells)} |"


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if isinstance(option.show_default, str):
        return option.show_default
    default = option.default
    if default is None or default == "" or default is False:
        return ""
    return f"`{getattr(default, 'value', default)}`"


def _client() -> Iterator[str]:
    yield "Settings of `loomlog.connect(address, name=value, …)` and `loomlog.connect_sync`:"
    yield ""
    yield "| setting | default | meaning |"
    yield "|---|---|---|"
    comments = _comments(config.ClientSettings)
    for each in dataclasses.fields(config.ClientSettings):
        default = f"`{each.default!r}`" if each.default != "" else ""
        yield f"| `{each.name}` | {default} | {_escaped(comments[each.name])} |"


def _comments(settings: type) -> dict[str, str]:
    """Return the comments at the fields, or above them."""
    lines = inspect.getsource(settings).splitlines()
    tree = ast.parse("\n".join(lines)).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _, _, comment = lines[node.lineno - 1].partition("  # ")
            above = lines[node.lineno - 2].strip()
            if not comment and above.startswith("# "):
                comment = above.removeprefix("# ")
            found[node.target.id] = comment
    return found


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"wrote {PAGE.name}\n")
