"""What rounding learns from: the source run over texts, and second moments of what its products read."""
