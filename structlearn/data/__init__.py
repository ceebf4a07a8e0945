"""Readers of corpora, synthetic data, and what turns them into batches."""
