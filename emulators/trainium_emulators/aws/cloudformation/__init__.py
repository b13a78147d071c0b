"""Models of CloudFormation resources that moto lacks, one file per service.

Every model delegates to moto's own back-ends, so that deployed resources can be listed and
described through the AWS APIs, and destroy really removes them.
"""
