"""Work queues: entries of a log as jobs that are acknowledged one by one."""
