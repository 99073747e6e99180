"""The quorum round log: members, their leader, and takeovers. Pure."""
