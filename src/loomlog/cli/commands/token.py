"""`loom token …`: tokens, which give their holders permissions until they expire."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from loomlog.cli.console import changes
from loomlog.cli.console.command import connected_sync
from loomlog.cli.console.options import CLUSTER, Cluster, Json, Yes
from loomlog.cli.console.output import console, new_table, plain, print_json, say

app = typer.Typer(help="Tokens, which give their holders permissions until they expire.")

SHOWN_CHARS = 12  # of an id: enough to distinguish tokens


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the holder.")],
    allow: Annotated[
        list[str],
        typer.Option(metavar="VERB:NAMES", help="Permission, such as append:orders.* Repeatable."),
    ],
    expires: Annotated[str, typer.Option(metavar="TIME", help="How long it lives.")] = "90d",
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Print a new token. It is a secret, and is not stored: keep it in a file that only its user
    can read."""
    with connected_sync(cluster) as client:
        made = client.create_token(name, allow, expires)
    say({"token": made.text, **asdict(made.info)}, made.text, as_json=as_json)


@app.command("list")
def list_all(cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List the tokens that were issued and have not expired, and the keys that sign them."""
    with connected_sync(cluster) as client:
        access = client.access()
    if as_json:
        print_json({"keys": access.keys, "tokens": [asdict(token) for token in access.tokens]})
        return
    table = new_table("id", "name", "allows", "expires", "key", "state")
    for token in access.tokens:
        expires = datetime.fromtimestamp(token.expires_s, UTC).isoformat(" ", "seconds")
        state = "revoked" if token.revoked else "valid"
        allowed = plain(", ".join(token.allow))
        row = (token.id[:SHOWN_CHARS], plain(token.name), allowed, expires, str(token.key), state)
        table.add_row(*row)
    console().print(table)


@app.command()
def revoke(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID…", help="Id, as shown by `loom token list`.")
    ],
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Revoke tokens, and all tokens derived from them."""
    changes.confirm_at_terminal(f"Revoke {', '.join(ids)} permanently?", yes=yes)
    with connected_sync(cluster) as client:
        access = client.revoke_tokens(*ids)
    fields = {"revoked": ids, "behind": list(access.behind)}
    say(fields, f"revoked {', '.join(ids)}", as_json=as_json)


@app.command()
def rotate(
    drop: Annotated[
        list[int] | None,
        typer.Option(metavar="KEY", help="Invalidate all tokens of this old key. Repeatable."),
    ] = None,
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Sign new tokens with a new key. Older tokens stay valid until their key is dropped."""
    if drop:
        dropped = ", ".join(map(str, drop))
        changes.confirm_at_terminal(f"Invalidate all tokens of key {dropped} permanently?", yes=yes)
    with connected_sync(cluster) as client:
        access = client.rotate_token_key(drop=drop or ())
    fields = {"keys": access.keys, "behind": list(access.behind)}
    text = f"tokens are signed with key {access.keys[-1]}; accepted: {list(access.keys)}"
    say(fields, text, as_json=as_json)
