"""Which topics there are, and which broker serves one."""
