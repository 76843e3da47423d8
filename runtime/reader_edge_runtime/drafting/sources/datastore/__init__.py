"""Corpora on disk that drafts are looked up in."""
