"""What `nadaraya check` measures: errors of every backend, times of every way to do a kind of call."""
