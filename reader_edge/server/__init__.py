"""The HTTP interfaces of OpenAI and Ollama over the runtime's subpackage `serving`. Needs the extra "serve"."""
