"""The data pipeline: codeQ's event log on Spark, the lake made from it, and bulk work in both directions."""
