"""What moto lacks of CloudFormation for this project's templates, one file per concern.

Every model delegates to moto's own back-ends, so that what is deployed can be listed and described
through the AWS APIs, and destroy really takes it away.
"""
