"""The real program as a user runs it: killed, fed with bad input, and compared with itself."""
