"""The HTTP interfaces of OpenAI and Ollama over the runtime's serving wing. Needs the extra "serve"."""
