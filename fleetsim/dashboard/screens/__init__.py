"""The screens. Each draws the view and stores only its cursor, its filter and drafts."""
