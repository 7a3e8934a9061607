# The bucket. lastgood needs three things of it: conditional writes (every general-purpose bucket has them), that nobody
# expires what lies in it, and that uploads nobody finished go away.

resource "aws_s3_bucket" "checkpoints" {
  bucket = var.bucket
  tags   = var.tags

  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_s3_bucket_public_access_block" "checkpoints" {
  bucket                  = aws_s3_bucket.checkpoints.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "checkpoints" {
  bucket = aws_s3_bucket.checkpoints.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

# Versioning is not needed for a verdict: lastgood writes each key once, and says so with If-None-Match. It is here because
# a generation that somebody deletes or overwrites with other tools can then be brought back, which no verdict can do.
# What it costs: replaced and deleted bytes are paid for until `noncurrent_days` are over. A trainer's own retention
# deletes generations, so plan for that many days of them.
resource "aws_s3_bucket_versioning" "checkpoints" {
  bucket = aws_s3_bucket.checkpoints.id

  versioning_configuration {
    status = "Enabled"
  }
}

# No rule here expires a current version, and none should: a generation without one of its objects is `shard_missing`.
resource "aws_s3_bucket_lifecycle_configuration" "checkpoints" {
  bucket     = aws_s3_bucket.checkpoints.id
  depends_on = [aws_s3_bucket_versioning.checkpoints]

  rule {
    id     = "abort-incomplete-uploads"
    status = "Enabled"

    filter {}

    # A trainer that was killed leaves parts that no listing of objects shows. Longer than any save takes.
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  rule {
    id     = "noncurrent-versions"
    status = "Enabled"

    filter {}

    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }

    expiration {
      expired_object_delete_marker = true
    }
  }
}

resource "aws_s3_bucket_policy" "checkpoints" {
  bucket     = aws_s3_bucket.checkpoints.id
  policy     = templatefile("${path.module}/policies/bucket.json.tftpl", local.names)
  depends_on = [aws_s3_bucket_public_access_block.checkpoints]
}
