"""Preview of `cdk deploy`: what it would end, replace or leave behind in the account."""
