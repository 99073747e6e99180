"""Running servers, Spark and event loops as processes."""
