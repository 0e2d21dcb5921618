"""What holds training back, at which line, what to change, and what that would give."""
