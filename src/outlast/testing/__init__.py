"""Public test helpers: contracts that users run on their own samplers, and makers of records."""
