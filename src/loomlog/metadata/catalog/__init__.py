"""The records of logs, streams and nodes, durable before they are visible in memory."""
