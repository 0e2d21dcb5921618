"""From a recorded run to what it showed. Nothing here measures or prints."""
