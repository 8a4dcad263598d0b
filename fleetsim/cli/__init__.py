"""The verbs: stdout is data, stderr is for the person."""
