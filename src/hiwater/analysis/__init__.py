"""Pure functions from the arrays of a capture to sums, trees and rankings. They format nothing and read no files."""
