"""What must be so after the steps, and how it is looked up."""
