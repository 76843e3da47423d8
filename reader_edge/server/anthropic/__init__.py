"""Anthropic's words for questions and answers: `/v1/messages`, as Claude Code and Anthropic's packages send it."""
