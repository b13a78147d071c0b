"""Preview of `cdk deploy`: jobs it would end, and resources it would replace or leave behind."""
