"""The metrics of ended runs as Parquet files in the artifact store."""
