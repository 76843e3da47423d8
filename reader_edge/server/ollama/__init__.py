"""Ollama's words for questions and answers: `/api/...`, but for what LM Studio asks there."""
