terraform {
  required_version = ">= 1.5.0" # `optional` in object types and checks; nothing newer is used

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.60" # the fifth major; its S3 and SQS resources are the ones written here
    }
  }
}
