variable "bucket" {
  description = "Name of the bucket that holds the checkpoints."
  type        = string
}

variable "prefix" {
  description = "Prefix of the root below the bucket, as in root = \"s3://<bucket>/<prefix>\" of lastgood.toml; no slash at either end."
  type        = string
  default     = "runs"

  validation {
    condition     = length(var.prefix) > 0 && !startswith(var.prefix, "/") && !endswith(var.prefix, "/")
    error_message = "The prefix needs at least one character and no slash at either end."
  }
}

variable "families" {
  description = "Names of the families, as in lastgood.toml; each gets its own notification and its own place in the policies."
  type        = list(string)

  validation {
    condition     = length(var.families) > 0
    error_message = "Name at least one family: a policy for none would be empty."
  }
}

variable "events" {
  description = "How the bucket announces commits: `sqs` (straight into the queue) or `eventbridge` (through a rule, which other consumers may share)."
  type        = string
  default     = "sqs"

  validation {
    condition     = contains(["sqs", "eventbridge"], var.events)
    error_message = "Expected sqs or eventbridge."
  }
}

variable "noncurrent_days" {
  description = "How long a version that was replaced or deleted can still be brought back."
  type        = number
  default     = 30
}

variable "tags" {
  description = "Tags of everything that is made here."
  type        = map(string)
  default     = {}
}
