output "root" {
  description = "The root of every family in lastgood.toml."
  value       = "s3://${var.bucket}/${var.prefix}"
}

output "relay_command" {
  description = "What the relay is started with."
  value       = "lastgood relay --source sqs --queue-url ${aws_sqs_queue.saves.url}"
}

output "policies" {
  description = "ARNs of the policies: trainer, gate, relay."
  value = {
    trainer = aws_iam_policy.trainer.arn
    gate    = aws_iam_policy.gate.arn
    relay   = aws_iam_policy.relay.arn
  }
}
