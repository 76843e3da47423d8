"""Drafts from the files of a folder, which it follows as they change."""
