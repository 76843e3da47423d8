"""Models by name: which there are, how they are fetched, and what of them this user's cache holds."""
