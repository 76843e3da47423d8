"""Lowers the trace's marker operators to what a runtime has: exact, fast or portable attention, recurrent operators."""
