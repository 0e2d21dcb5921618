"""The sandbox of a trial: a mount namespace in which nothing it writes reaches the user's files."""
