"""Background work that is retried until it succeeds."""
