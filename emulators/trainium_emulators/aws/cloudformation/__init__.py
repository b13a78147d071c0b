"""Models of CloudFormation resources that moto lacks, one file per service.

Every model delegates to moto's own backends, so that AWS's APIs list and describe deployed
resources, and destroy really removes them.
"""
