"""Named clusters: a file of the user with the address and connection settings of each."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from loomlog.cli.console.failures import UsageError
from loomlog.errors import InvalidArgument, NotFound

VARIABLE: Final = "LOOM_CONTEXT"


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster as a user connects to it."""

    cluster: str
    tls: str = ""
    token_file: str = ""


@dataclass(slots=True)
class Contexts:
    """All named clusters, and the default of commands."""

    current: str = ""
    by_name: dict[str, Context] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Contexts:
        file = contexts_file()
        try:
            fields = json.loads(file.read_text())
            found = {name: Context(**each) for name, each in fields["contexts"].items()}
            return cls(str(fields["current"]), found)
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidArgument(
                f"{file} is not a valid context file: correct or remove it"
            ) from None

    def save(self) -> None:
        """Replace the file atomically."""
        file = contexts_file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fields = {
            "current": self.current,
            "contexts": {name: asdict(each) for name, each in sorted(self.by_name.items())},
        }
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.write_text(json.dumps(fields, indent=2) + "\n")
        draft.replace(file)

    def get(self, name: str) -> Context:
        found = self.by_name.get(name)
        if found is None:
            known = ", ".join(sorted(self.by_name)) or "none yet: `loom context set NAME ADDR`"
            raise NotFound(f"there is no context {name!r}; there are: {known}")
        return found


def contexts_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "loomlog" / "contexts.json"


def chosen(name: str | None) -> Context | None:
    """Return the context of this name, of LOOM_CONTEXT, or the one that is in use, if any."""
    wanted = name or os.environ.get(VARIABLE, "")
    contexts = Contexts.load()
    if wanted:
        try:
            return contexts.get(wanted)
        except NotFound as error:
            raise UsageError(str(error)) from None
    return contexts.by_name.get(contexts.current)
