# From the bucket to the queue. One object announces a save: <prefix>/<family>/.lastgood/commits/<generation>. Only those
# are asked for; a shard is no reason to send an event.

locals {
  commits = [for family in var.families : "${var.prefix}/${family}/.lastgood/commits/"]
}

# A bucket has one notification configuration; this replaces whatever another tool has set.
resource "aws_s3_bucket_notification" "checkpoints" {
  bucket      = aws_s3_bucket.checkpoints.id
  eventbridge = var.events == "eventbridge"

  dynamic "queue" {
    for_each = var.events == "sqs" ? local.commits : []

    content {
      queue_arn     = aws_sqs_queue.saves.arn
      events        = ["s3:ObjectCreated:*"]
      filter_prefix = queue.value
    }
  }

  depends_on = [aws_sqs_queue_policy.saves]
}

resource "aws_cloudwatch_event_rule" "commits" {
  count       = var.events == "eventbridge" ? 1 : 0
  name        = "lastgood-commits"
  description = "Commits of checkpoints, for lastgood relay."
  tags        = var.tags

  event_pattern = jsonencode({
    source      = ["aws.s3"]
    detail-type = ["Object Created"]
    detail = {
      bucket = { name = [var.bucket] }
      object = { key = [for commits in local.commits : { prefix = commits }] }
    }
  })
}

resource "aws_cloudwatch_event_target" "saves" {
  count = var.events == "eventbridge" ? 1 : 0
  rule  = aws_cloudwatch_event_rule.commits[0].name
  arn   = aws_sqs_queue.saves.arn
}
