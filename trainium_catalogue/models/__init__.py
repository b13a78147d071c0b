"""Facts about models: shapes, hyperparameter presets, and models stored in the bucket."""
