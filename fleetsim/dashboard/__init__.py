"""The screens, which only render a fold of events."""
