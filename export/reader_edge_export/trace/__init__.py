"""Traces a source module to a graph with marker operators in place of attention, recurrent layers and matrices."""
