"""What is needed when a ledger may not be whole: checking it, reading its log, salvaging what can be read."""
