"""The measurements of `nadaraya check`: errors of every backend, times of every way to do a call."""
