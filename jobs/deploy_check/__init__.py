"""What `cdk deploy` would end, replace or leave behind: an assembly beside the account."""
