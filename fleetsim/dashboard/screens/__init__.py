"""The screens. Each is given the view and draws it; none holds any state but the cursor, a filter and drafts."""
