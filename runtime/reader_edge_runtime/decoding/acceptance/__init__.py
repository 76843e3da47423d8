"""Which drafted tokens stay."""
