"""Pure logic: no I/O, no clock, no randomness. Everything here is a function of its arguments."""
