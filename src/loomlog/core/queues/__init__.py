"""Work queues: which entries of a log are done, and which member works on the others. Pure."""
