"""Markers of layers become operators that a runtime has: exact, fast or portable attention, recurrent operators."""
