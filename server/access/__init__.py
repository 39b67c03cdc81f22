"""Who may do what: tokens, projects, and the audit log."""
