# Where commits are announced to `lastgood relay --source sqs`, and where what nobody could decode ends.

resource "aws_sqs_queue" "undecodable" {
  name                      = "lastgood-saves-undecodable"
  message_retention_seconds = 1209600 # 14 days, the longest there is: for people, not for machines
  sqs_managed_sse_enabled   = true
  tags                      = var.tags
}

resource "aws_sqs_queue" "saves" {
  name = "lastgood-saves"

  # The relay asks for five minutes of its own with each message; this is for whoever else looks into the queue.
  visibility_timeout_seconds = 300
  receive_wait_time_seconds  = 20
  # A relay that was away for longer has lost hints, and no verdict: it lists every family at its start.
  message_retention_seconds = 345600
  sqs_managed_sse_enabled   = true
  tags                      = var.tags

  # The relay gives back at once what it cannot decode; after five deliveries it is put aside.
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.undecodable.arn
    maxReceiveCount     = 5
  })
}

resource "aws_sqs_queue_redrive_allow_policy" "undecodable" {
  queue_url = aws_sqs_queue.undecodable.id

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.saves.arn]
  })
}

resource "aws_sqs_queue_policy" "saves" {
  queue_url = aws_sqs_queue.saves.id
  policy    = templatefile("${path.module}/policies/queue.json.tftpl", local.names)
}

# The one alarm that the queue needs: a sender that lastgood does not understand.
resource "aws_cloudwatch_metric_alarm" "undecodable" {
  alarm_name          = "lastgood-saves-undecodable"
  alarm_description   = "Messages that lastgood relay could not decode. The saves were found by listing; look at the sender, redrive nothing."
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.undecodable.name }
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  period              = 300
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  tags                = var.tags
}
