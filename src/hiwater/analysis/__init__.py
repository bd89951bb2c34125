"""Meaning from facts: pure functions from the arrays of a capture to sums, trees and rankings. No looks, no files."""
