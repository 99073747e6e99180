"""Work queues: which entries of a log are done, and who works on the others. Pure."""
