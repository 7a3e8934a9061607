# Who may do what, one policy a role; attach them to whatever the machines of that role run as.
#
#   trainer  publishes and resumes: generations, and what a publish writes below .lastgood. No evidence: a job that could
#            write records or lift a refusal would judge itself.
#   gate     judges (workers, reconcile, the command line): reads generations, writes below .lastgood only.
#   relay    receives from the queue and reads below .lastgood, for it looks into storage before it asks for a run.
#
# Names are not narrowed to a prefix: S3 says 404 of an absent object only to whoever may list the whole bucket, and 403 to
# everybody else, and lastgood must tell "not there" from "not allowed". Who may not see the names needs another bucket.
#
# A gate cannot delete what a dead publish left in a generation's place; `lastgood reconcile` names it each time. Who wants it
# gone runs that command with both policies, gate and trainer: neither denies anything, so they add up.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  names = {
    partition = data.aws_partition.current.partition
    account   = data.aws_caller_identity.current.account_id
    bucket    = var.bucket
    prefix    = var.prefix
    families  = var.families
    queue     = aws_sqs_queue.saves.arn
  }
}

resource "aws_iam_policy" "trainer" {
  name        = "lastgood-trainer-${var.bucket}"
  description = "Publish and resume checkpoints below s3://${var.bucket}/${var.prefix}."
  policy      = templatefile("${path.module}/policies/trainer.json.tftpl", local.names)
  tags        = var.tags
}

resource "aws_iam_policy" "gate" {
  name        = "lastgood-gate-${var.bucket}"
  description = "Judge checkpoints below s3://${var.bucket}/${var.prefix}."
  policy      = templatefile("${path.module}/policies/gate.json.tftpl", local.names)
  tags        = var.tags
}

resource "aws_iam_policy" "relay" {
  name        = "lastgood-relay-${var.bucket}"
  description = "Hear of commits below s3://${var.bucket}/${var.prefix}."
  policy      = templatefile("${path.module}/policies/relay.json.tftpl", local.names)
  tags        = var.tags
}
