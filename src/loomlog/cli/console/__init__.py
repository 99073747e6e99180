"""Output, prompts, options and errors that commands share."""
