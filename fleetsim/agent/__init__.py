"""The reference agent: to copy, or to test a caller against."""
