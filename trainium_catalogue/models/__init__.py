"""Facts about models: shapes, presets of hyperparameters, and models kept in the bucket."""
