"""OpenAI's HTTP interface: its bodies, and how its answers are worded."""
