"""Plain and drafted decoding side by side: `run --compare` and `bench decode`."""
