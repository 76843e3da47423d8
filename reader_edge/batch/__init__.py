"""OpenAI's batch files: what `batch` answers, line by line, over the server's endpoints."""
