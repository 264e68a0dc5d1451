"""What every other package may import: errors, words, metrics, files and storage."""
