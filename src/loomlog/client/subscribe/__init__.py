"""The path of entries to a reader: a stack of sequences, each built on the one below.

    entries(), arrow()          pieces.py         what users iterate over
      WithoutPayloads           pieces.py         optional: drops keys and values
        WithArchive             with_archive.py   reads trimmed entries from the archive
          WithoutReferences     references.py     replaces references by the rows published
            OnlyCommitted       transactions/     drops batches of failed transactions
              Subscription      subscription.py   goes from one run of the log to the next
                Part            part.py           follows one run, using its protocol:
                                                  client/loglets/{ordered,chained,copyset}/part.py

Each of them is a `Pieces`: `next()` waits for the next piece, `next_ready()` returns it if it has
arrived, `close()` ends the sequence. LogPieces (log_pieces.py) builds the stack. A numbering
(numbering.py) decides whether a subscription counts positions of the log or LLSNs of one stream.
"""
