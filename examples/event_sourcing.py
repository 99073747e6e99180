"""Event sourcing: the log is the truth, and the balance of an account is what follows from it.

Several programs append commands without locks. Whether a withdrawal counts is decided when it is
replayed: all replay the same sequence, so all decide the same, and no account is ever overdrawn.

Start a cluster with `loom up`, then run this file, several times. LOOM_CLUSTER says where it is.
"""

import asyncio
import os
from dataclasses import dataclass, field

import loomlog
from loomlog.client.coded_log import CodedLog
from loomlog.codecs import DataclassCodec


@dataclass
class Command:
    """A request to change an account."""

    account: str
    amount: int  # below 0: a withdrawal


@dataclass
class Accounts:
    """The state: it depends on nothing but the commands and their order."""

    balances: dict[str, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    position: int = 0  # of the last command that is in it

    def apply(self, position: int, command: Command) -> None:
        balance = self.balances.get(command.account, 0) + command.amount
        if balance < 0:
            self.refused.add(position)
        else:
            self.balances[command.account] = balance
        self.position = position


async def replay(log: CodedLog[Command], accounts: Accounts) -> None:
    """Bring the state up to the end of the log."""
    tail = await log.bytes.tail()
    if tail > accounts.position:
        async for entry in log.subscribe(start=accounts.position + 1, stop=tail):
            accounts.apply(entry.position, entry.value)


async def teller(log: CodedLog[Command], amount: int, count: int) -> int:
    """Append commands one by one; return how many were refused."""
    accounts, refused = Accounts(), 0
    for _ in range(count):
        at = await log.append(Command("ada", amount))
        await replay(log, accounts)  # a command counts, or not, once it is replayed
        refused += at.position in accounts.refused
    return refused


async def main() -> None:
    address = os.environ.get("LOOM_CLUSTER", "127.0.0.1:7400")
    async with await loomlog.connect(address) as cluster:
        await cluster.create_log("accounts", exist_ok=True)
        log = cluster.log("accounts", codec=DataclassCodec(Command))
        await log.append(Command("ada", 100))
        refused = await asyncio.gather(*(teller(log, -30, 5) for _ in range(3)))

        one, other = Accounts(), Accounts()
        await asyncio.gather(replay(log, one), replay(log, other))
        assert one == other, "the same commands in the same order give the same accounts"
        assert one.balances["ada"] >= 0
        print(f"three tellers, {sum(refused)} withdrawals refused; ada has {one.balances['ada']}")


if __name__ == "__main__":
    asyncio.run(main())
