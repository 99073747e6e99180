"""The quorum round log: what a member takes, what a leader sends, how a takeover goes. Pure."""
