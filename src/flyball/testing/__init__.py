"""What users and our own tests share."""
