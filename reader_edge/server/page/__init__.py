"""The page to chat on, at `/`: its own files, and two of others (README.md)."""
