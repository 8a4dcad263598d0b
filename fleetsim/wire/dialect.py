"""What a dialect can do, and how one is chosen. The only module that imports the dialects themselves."""
