"""OpenAI's HTTP interface over the runtime's serving wing. Needs the extra "serve"."""
