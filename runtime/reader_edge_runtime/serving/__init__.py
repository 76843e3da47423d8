"""Serving: one thread decodes for many callers, who wait without blocking theirs."""
