"""A store of blocks that are written once, without threads."""

from __future__ import annotations

from hand_worker import HandWorker

from loomlog.core.chained.chain import Block, Replica
from loomlog.core.chained.messages import Answer, Create, Done, Request, Seal, SealedAt, Write
from loomlog.storage.chained.block_table import BlockTable
from loomlog.storage.chained.write_once import WriteOnceStore

NODE = 7
HERE = Replica(NODE, 1, 0, 5)
THERE = Replica(NODE, 1, 1, 5)
EPOCH = 3


def batch(first: int, count: int = 1, sequence: int = 1, content: bytes = b"batch") -> Block:
    return Block(first, count, 9, sequence, content)


class WriteOnceRig:
    """A store driven by hand."""

    def __init__(self, table: BlockTable, *, sync: bool = True) -> None:
        self.table = table
        self.commits, self.look_ups = HandWorker(), HandWorker()
        self.store = WriteOnceStore(table, self.commits, self.look_ups, sync=sync)

    def ask(self, request: Request, replica: Replica = HERE) -> Answer:
        answers: list[Answer] = []
        self.store.ask(replica, request, answers.append)
        assert not answers  # never at once: the loop is not blocked
        self.work()
        [answer] = answers
        return answer

    def work(self) -> None:
        while self.commits.jobs:
            self.commits.work()
        while self.look_ups.jobs:
            self.look_ups.work()

    def sealed(self, *replicas: Replica, epoch: int = EPOCH) -> WriteOnceRig:
        for replica in replicas or (HERE,):
            assert self.ask(Create(), replica) == Done()
            assert self.ask(Seal(epoch), replica) == SealedAt(0, 0)
        return self

    def write(self, *blocks: Block) -> list[Answer]:
        """Write all blocks in one commit."""
        answers: list[Answer] = []
        for block in blocks:
            self.store.ask(HERE, Write(EPOCH, block), answers.append)
        self.work()
        return answers
